"""Requests and responses, against a small stand-in for Triton's module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from python_backend import errors
from python_backend.errors import InvalidArgument
from python_backend.messages import GENERATION_OUTPUTS, Answer, Decision, RawRequest, Sequence
from tests.unit.python_backend import fake_triton
from tests.unit.python_backend.fake_triton import (
    FINAL,
    Request,
)

fake_triton.install()

from python_backend.wire import reading, sending, writing  # noqa: E402

NUMPY = {"STRING": np.object_, "FP32": np.float32, "UINT32": np.uint32, "BOOL": np.bool_}
ANSWER = Answer(
    sequences=(Sequence("día", 2, "stop", -1.5, "[]"), Sequence("", 0, None, None, None)),
    num_input_tokens=7,
    lora_served="fin_risk_v1@dddddddddddd",
    request_uid="u1",
    final=True,
)
ALL = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")


def raw(**tensors: Any) -> RawRequest:
    return reading.read_raw(Request(**tensors), can_stream=True)


def test_nothing_sent_is_nothing_read() -> None:
    assert raw() == RawRequest()


def test_everything_sent_is_read() -> None:
    request = Request(
        parameters='{"x-api-key": "k", "temperature": 0.5}',
        timeout_us=9,
        text_input=[b"caf\xc3\xa9"],
        lora_id=["fin_risk_v1"],
        credential=[b"key"],
        stream=[True],
        sampling_parameters=[b"{}"],
        exclude_input_in_output=[False],
        return_logprobs=[True],
        return_finish_reason=[False],
    )
    assert reading.read_raw(request, can_stream=False) == RawRequest(
        text_input=b"caf\xc3\xa9",
        lora_id=b"fin_risk_v1",
        credential=b"key",
        stream=True,
        sampling_parameters=b"{}",
        exclude_input_in_output=False,
        returns=frozenset({"logprobs"}),
        parameters={"x-api-key": "k", "temperature": 0.5},
        timeout_us=9,
        can_stream=False,
    )


@pytest.mark.parametrize("name", ["text_input", "lora_id", "credential", "stream", "forwarded"])
@pytest.mark.parametrize("count", [0, 2])
def test_exactly_one_element(name: str, count: int) -> None:
    values: list[Any] = [True if name == "stream" else b"x"] * count
    with pytest.raises(InvalidArgument) as caught:
        raw(**{name: values})
    assert caught.value.sentence == f"{name}: exactly one element is expected, not {count}."


def test_bytes_that_are_not_utf8_stay_as_they_are() -> None:
    """Judging them is the gate's business; none may be lost or replaced on the way."""
    assert raw(text_input=[b"\xff\xfe"]).text_input == b"\xff\xfe"
    assert raw(text_input=["\udcff"]).text_input == b"\xff"


def test_an_element_in_a_matrix_is_one_element() -> None:
    assert raw(text_input=[[b"x"]]).text_input == b"x"


@pytest.mark.parametrize("parameters", ["{", "nonsense"])
def test_parameters_that_cannot_be_read(parameters: str) -> None:
    with pytest.raises(InvalidArgument, match="parameters: not readable as JSON"):
        raw(parameters=parameters)


def test_a_doors_parameters_take_the_place_of_tritons() -> None:
    body = fake_triton.forwarded({"temperature": 0.1}, timeout_us=5, can_stream=False)
    found = raw(parameters='{"temperature": 1}', timeout_us=1, forwarded=[body])
    assert (found.parameters, found.timeout_us, found.can_stream) == (
        {"temperature": 0.1},
        5,
        False,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"parameters": 3, "timeout_us": 1, "can_stream": true}',
        b'{"parameters": {}, "timeout_us": "x", "can_stream": true}',
        b"\xff",
        pytest.param(b'{"parameters": {}, "timeout_us": 1e999, "can_stream": true}'),
        b'{"parameters": [[1, 2]], "timeout_us": 0, "can_stream": true}',
        b'{"parameters": {}, "timeout_us": %d, "can_stream": true}' % 10**300,
        pytest.param(b"[" * 200_000, id="deep"),
    ],
)
def test_forwarded_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="forwarded: not readable"):
        raw(forwarded=[body])


def test_a_call_is_read_whatever_it_holds() -> None:
    call = reading.read_call(Request(prompt=[b"p\xff"], request=[b"{}"], ticket=["t\u00e9"]))
    assert (call.prompt, call.request, call.early_accept) == (b"p\xff", b"{}", False)
    assert call.ticket.startswith("t") and not call.ticket.isascii()
    bad = Request(prompt=[b"a", b"b"], request=[], ticket=[b"x", b"y"], early_accept=[True, True])
    assert reading.read_call(bad) == reading.Call(b"", b"", "", False)
    assert reading.read_call(Request()) == reading.Call(b"", b"", "", False)
    assert reading.read_call(Request(early_accept=[True])).early_accept is True


def tensors(answer: Answer, returns: tuple[str, ...], *, fill: bool) -> dict[str, Any]:
    found = writing.answer_tensors(answer, returns, fill=fill)
    assert len({tensor.name() for tensor in found}) == len(found)
    return {tensor.name(): tensor.as_numpy() for tensor in found}


def test_an_answer_with_all_outputs() -> None:
    found = tensors(ANSWER, ALL, fill=False)
    assert {name: values.dtype for name, values in found.items()} == {
        spec.name: np.dtype(NUMPY[spec.dtype]) for spec in GENERATION_OUTPUTS
    }
    assert list(found["text_output"]) == ["día".encode(), b""]
    assert list(found["finish_reason"]) == [b"stop", b"None"]
    assert found["cumulative_logprob"][0] == np.float32(-1.5)
    assert np.isnan(found["cumulative_logprob"][1])
    assert list(found["logprobs"]) == [b"[]", b"null"]
    assert list(found["num_input_tokens"]) == [7]
    assert list(found["num_output_tokens"]) == [2, 0]
    assert list(found["lora_served"]) == [b"fin_risk_v1@dddddddddddd"]
    assert list(found["request_uid"]) == [b"u1"]


def test_outputs_nobody_asked_for() -> None:
    always = {"text_output", "lora_served", "request_uid"}
    assert tensors(ANSWER, (), fill=False).keys() == always
    assert tensors(ANSWER, ("logprobs",), fill=False).keys() == always | {"logprobs"}
    filled = tensors(ANSWER, ("logprobs",), fill=True)
    assert filled.keys() == {spec.name for spec in GENERATION_OUTPUTS}
    for spec in GENERATION_OUTPUTS:
        assert filled[spec.name].dtype == np.dtype(NUMPY[spec.dtype])
        if spec.name not in always | {"logprobs"}:
            assert filled[spec.name].shape == (0,)


@pytest.mark.parametrize("kind", list(errors.CODES.values()))
def test_errors_keep_message_and_status(kind: type[errors.ServingError]) -> None:
    error = errors.parse(f"{kind.code}: what happened. retry_after=2")
    found = writing.error_response(error).error()
    assert found.message() == error.message
    assert found.status == getattr(fake_triton.TritonError, kind.triton_status)


@pytest.fixture
def thread() -> Iterator[sending.SenderThread]:
    thread = sending.SenderThread()
    yield thread
    thread.stop()


def sent(
    request: Request, thread: sending.SenderThread
) -> list[tuple[list[str] | str | None, int]]:
    """What has been sent: tensor names, error or nothing, and the flags."""
    reached = threading.Event()
    thread.put(reached.set)
    assert reached.wait(10)
    found: list[tuple[list[str] | str | None, int]] = []
    for response, flags in request.sender.sent:
        if response is None:
            found.append((None, flags))
        elif response.has_error():
            found.append((response.error().message(), flags))
        else:
            found.append(([t.name() for t in response.output_tensors()], flags))
    return found


def test_a_doors_responses(thread: sending.SenderThread) -> None:
    request = Request()
    responder = sending.StreamResponder(request, thread, for_door=True)
    responder.accept()
    responder.send(ANSWER, ("finish_reason",))
    names = ["text_output", "lora_served", "request_uid", "finish_reason", "final"]
    assert sent(request, thread) == [([], 0), (names, FINAL)]


def test_an_error_and_an_empty_end(thread: sending.SenderThread) -> None:
    failed, done = Request(), Request()
    sending.StreamResponder(failed, thread, for_door=False).fail(errors.NotFound())
    sending.StreamResponder(done, thread, for_door=False).done()
    assert sent(failed, thread) == [
        ("not_found: no adapter of that name is available to you.", FINAL)
    ]
    assert sent(done, thread) == [(None, FINAL)]


def test_a_response_that_cannot_be_sent_stops_no_other(
    thread: sending.SenderThread, caplog: pytest.LogCaptureFixture
) -> None:
    def gone() -> None:
        raise RuntimeError("the caller has gone")

    thread.put(gone)
    request = Request()
    sending.StreamResponder(request, thread, for_door=False).done()
    assert sent(request, thread) == [(None, FINAL)]
    assert "could not be sent" in caplog.text


@pytest.mark.parametrize("cancel_ticket", ["", "cancel"])
def test_a_cancel_ticket_is_sent_where_there_is_one(cancel_ticket: str) -> None:
    response = writing.decision_response(Decision("p", "{}", "ticket", cancel_ticket))
    names = [tensor.name() for tensor in response.output_tensors()]
    assert names == ["prompt", "request", "ticket", *["cancel_ticket"] * bool(cancel_ticket)]


def test_what_a_caller_asks_for() -> None:
    request = Request(wanted=["prompt", "ticket"])
    assert reading.wants(request, "ticket") and not reading.wants(request, "cancel_ticket")
