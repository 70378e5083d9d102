"""What is sent of a call, what is made of its answer, and who sends what."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from loadtests import doors
from loadtests.doors import Answer, Doors
from loadtests.plan import Call, Load, Plan
from loadtests.sending import Sender, recorded
from tests.unit.loadtests.test_judge import WORDS, asked


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"fin": "secret"}))
    arrivals = tuple(asked(at=float(number)) for number in range(5))
    loops = tuple(
        tuple(asked(user=user, prompt=f"{name}{n}") for n in range(3))
        for name, user in (("a", "unary"), ("b", "unary"), ("c", "http_stream"))
    )
    return Plan(
        load=Load(seconds=10, arrivals=arrivals, loops=loops),
        http="127.0.0.1:1",
        grpc="127.0.0.1:2",
        keys_file=keys,
        words=WORDS,
        patience_s=30,
        workers=2,
    )


def sender(plan: Plan, worker: int) -> Sender:
    found = Sender(plan, plan.keys_file.parent, lambda **_: None)
    found._worker = worker
    return found


def test_workers_share_the_arrivals(plan: Plan) -> None:
    assert [call.at for call in plan.share(0)] == [0, 2, 4]
    assert [call.at for call in plan.share(1)] == [1, 3]


def test_users_share_the_loops(plan: Plan) -> None:
    one, other = sender(plan, 0), sender(plan, 1)
    begun = [[found.loop_of("unary")[0].prompt for _ in range(3)] for found in (one, other)]
    # The first user of each loop begins it, the second one call further on.
    assert begun == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
    assert [call.prompt for call in one.loop_of("http_stream")] == ["c0", "c1", "c2"]
    assert one.loop_of("grpc_stream") == ()


def values(tensors: list[Any]) -> dict[str, Any]:
    return {tensor.name(): tensor.datatype() for tensor in tensors}


def test_a_call_carries_key_name_and_exact_length(plan: Plan) -> None:
    sends, call = Doors(plan), asked(user="unary")
    assert sends._texts(call) == {
        "text_input": "Hi",
        "credential": "secret",
        "lora_id": "fin_w0001_v1",
    }
    assert sends._parameters(call) == {
        "temperature": 0,
        "timeout_ms": 30_000,
        "max_tokens": 3,
        "min_tokens": 3,
        "ignore_eos": True,
    }
    given = values(sends._inputs(call, doors.triton_grpc))
    assert "stream" not in given
    assert values(sends._inputs(asked(), doors.triton_grpc))["stream"] == "BOOL"
    base = asked(lora_id=None, word=None)
    assert "lora_id" not in sends._texts(base)


def test_a_malformed_call_is_malformed(plan: Plan) -> None:
    call = asked(kind="malformed", inputs={"messages": "[{"}, parameters={"max_tokens": -1})
    assert Doors(plan)._texts(call)["messages"] == "[{"
    assert Doors(plan)._parameters(call)["max_tokens"] == -1


def test_a_stream_becomes_a_line() -> None:
    answer = Answer(began=100.0, pieces_at=[100.5, 100.75, 101.75, 102.0], ended=102.25)
    answer.text, answer.served, answer.tokens = " alpha" * 4, "fin_w0001_v1@abc", 4
    line = recorded(asked(), 7.0, 7.25, answer, WORDS)
    assert (line.t, line.sent, line.ttft, line.total) == (7.0, 7.25, 0.5, 2.25)
    assert line.gaps == (0.25, 1.0)
    assert (line.tokens, line.route, line.outcome) == (4, "right", "ok")


def test_a_unary_answer_has_no_first_token() -> None:
    answer = Answer(began=1.0, pieces_at=[2.0], ended=2.0, text=" alpha", served="base", tokens=1)
    line = recorded(asked(user="unary"), 0.0, 0.0, answer, WORDS)
    assert (line.ttft, line.gaps, line.total, line.route) == (None, (), 1.0, "wrong")


def test_an_error_becomes_a_line() -> None:
    answer = Answer(began=1.0)
    answer.failed("overloaded: fin has too many requests. retry_after=1")
    answer.ended = 1.5
    line = recorded(asked(), 0.0, 0.0, answer, WORDS)
    assert (line.outcome, line.ttft, line.tokens, line.route) == (
        "overloaded",
        None,
        0,
        "unchecked",
    )


class Result:
    """What tritonclient gives."""

    def __init__(self, text: str, final: bool) -> None:
        self._text, self._final = text, final

    def as_numpy(self, name: str) -> np.ndarray[Any, Any] | None:
        given = {
            "text_output": np.array([self._text.encode()], object),
            "lora_served": np.array([b"fin_w0001_v1@abc"], object),
            "num_output_tokens": np.array([1], np.uint32),
        }
        return given.get(name)

    def get_response(self) -> Any:
        flag = SimpleNamespace(bool_param=self._final)
        outputs = ["text_output"] if self._text else []
        return SimpleNamespace(outputs=outputs, parameters={"triton_final_response": flag})


def taken(call: Call, *items: tuple[Any, Any]) -> tuple[bool, Answer]:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for item in items:
        answers.put(item)
    answer = Answer()
    return doors._take(answers, call, answer), answer


PIECE, FINAL = (Result(" alpha", False), None), (Result("", True), None)


def test_a_stream_is_read_to_its_end() -> None:
    whole, answer = taken(asked(), PIECE, PIECE, FINAL)
    assert whole
    assert (answer.text, answer.tokens, answer.outcome) == (" alpha alpha", 2, "ok")
    assert len(answer.pieces_at) == 2
    assert answer.served == "fin_w0001_v1@abc"


def test_who_leaves_reads_no_more() -> None:
    whole, answer = taken(asked(kind="cancel", leave_after=2), PIECE, PIECE)
    assert (whole, answer.outcome, answer.tokens) == (False, "cancelled", 2)


def test_an_error_of_the_request_leaves_the_stream() -> None:
    error = InferenceServerException("not_found: no adapter of that name is available to you.")
    whole, answer = taken(asked(), (None, error))
    assert (whole, answer.outcome) == (True, "not_found")


def test_an_error_of_the_stream_ends_it() -> None:
    error = InferenceServerException("Socket closed", status="StatusCode.UNAVAILABLE")
    whole, answer = taken(asked(), PIECE, (None, error))
    assert (whole, answer.outcome) == (False, "transport")


def test_error_bodies() -> None:
    assert doors._error_of(b'{"error": "not_found: no."}') == "not_found: no."
    assert doors._error_of(b"<html>") == "<html>"
