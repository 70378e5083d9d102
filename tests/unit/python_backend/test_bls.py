"""The models behind a door, called through a small stand-in for Triton's module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from python_backend import errors
from python_backend.messages import Answer, Decision, RawRequest, Sequence
from tests.unit.python_backend import fake_triton
from tests.unit.python_backend.fake_triton import InferenceRequest, InferenceResponse, Request

fake_triton.install()

from python_backend.wire import bls, reading, writing  # noqa: E402

ANSWER = Answer((Sequence("día", 2, "stop"), Sequence()), 7, "base", "u1", final=True)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the models behind a door answer; the calls to them are in ``InferenceRequest.calls``."""
    answers: dict[str, Any] = {}
    monkeypatch.setattr(InferenceRequest, "answers", answers)
    monkeypatch.setattr(InferenceRequest, "calls", [])
    return answers


def test_a_door_asks_the_gate(models: dict[str, Any]) -> None:
    decision = Decision("día", "{}", "ticket", "cancel")
    models["lora_gate"] = writing.decision_response(decision)
    request = Request(parameters='{"temperature": 0.5}', timeout_us=8, text_input=[b"\xff"])
    assert bls.TritonBackend(can_stream=False).decide(request) == decision
    (call,) = InferenceRequest.calls
    assert sorted(call.inputs) == ["forwarded", "text_input"]
    assert list(call.inputs["text_input"]) == [b"\xff"]
    passed_on = reading.read_raw(Request(forwarded=list(call.inputs["forwarded"])), can_stream=True)
    assert passed_on == RawRequest(parameters={"temperature": 0.5}, timeout_us=8, can_stream=False)


def test_a_gates_error_is_the_doors(models: dict[str, Any]) -> None:
    models["lora_gate"] = writing.error_response(errors.Overloaded("full.", retry_after=2))
    with pytest.raises(errors.Overloaded) as caught:
        bls.TritonBackend(can_stream=True).decide(Request())
    assert (caught.value.sentence, caught.value.retry_after) == ("full.", 2)


def test_a_door_passes_pieces_on(models: dict[str, Any]) -> None:
    def response(final: bool) -> Any:
        found = writing.answer_tensors(ANSWER, (), fill=False)
        return InferenceResponse([*found, writing.tensor("final", [final], np.bool_)])

    models["vllm_lora"] = [InferenceResponse([]), response(False), response(True)]
    decision = Decision("p", "{}", "ticket", "cancel")
    pieces = list(bls.TritonBackend(can_stream=True).generate(decision))
    assert [piece.final for piece in pieces] == [False, True]
    names = [t.name() for t in pieces[0].tensors]
    assert names == ["text_output", "lora_served", "request_uid"]
    (call,) = InferenceRequest.calls
    assert {name: list(values) for name, values in call.inputs.items()} == {
        "prompt": [b"p"],
        "request": [b"{}"],
        "ticket": [b"ticket"],
        "early_accept": [True],
    }


def test_an_engines_error_is_the_doors(models: dict[str, Any]) -> None:
    models["vllm_lora"] = [writing.error_response(errors.DeadlineExceeded("too late."))]
    pieces = bls.TritonBackend(can_stream=True).generate(Decision("p", "{}", "t", "c"))
    with pytest.raises(errors.DeadlineExceeded, match="too late"):
        list(pieces)


def test_a_cancel_carries_its_own_ticket(models: dict[str, Any]) -> None:
    models["vllm_lora"] = [InferenceResponse([])]
    bls.TritonBackend(can_stream=True).cancel(Decision("p", "{x}", "ticket", "cancel"))
    (call,) = InferenceRequest.calls
    found = {name: values[0] for name, values in call.inputs.items()}
    assert (found["prompt"], found["request"], found["ticket"]) == (b"", b"{}", b"cancel")
