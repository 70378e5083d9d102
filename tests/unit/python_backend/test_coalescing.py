"""Deltas that wait to be sent become one."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from python_backend import errors
from python_backend.answers import joined
from python_backend.messages import Answer, Sequence
from tests.unit.python_backend import fake_triton
from tests.unit.python_backend.fake_triton import FINAL, Request

fake_triton.install()

from python_backend.wire import sending  # noqa: E402


def delta(*sequences: Sequence, final: bool = False) -> Answer:
    return Answer(sequences, 7, "base", "u1", final)


def test_what_each_sequence_gained_is_added_up() -> None:
    one = delta(Sequence("a", 1, None, -1.0, '[{"1": 0}]'), Sequence("x", 1, "stop", -0.5))
    two = delta(Sequence("bc", 2, "length", -3.0, '[{"2": 0}, {"3": 0}]'), Sequence(), final=True)
    both = joined(one, two)
    first, second = both.sequences
    assert (first.text, first.num_tokens, first.finish_reason) == ("abc", 3, "length")
    assert first.cumulative_logprob == -3.0
    assert json.loads(first.logprobs or "") == [{"1": 0}, {"2": 0}, {"3": 0}]
    assert second == Sequence("x", 1, "stop", -0.5)
    assert both.final and both.num_input_tokens == 7 and both.lora_served == "base"


class Behind:
    """A sender whose Triton takes nothing until it is let go."""

    def __init__(self) -> None:
        self.thread = sending.SenderThread()
        self._go = threading.Event()
        self.thread.put(lambda: self._go.wait(10))

    def sent(self, request: Request) -> list[tuple[Any, int]]:
        self._go.set()
        self.thread.stop()
        return [
            (
                response.error().message()
                if response.has_error()
                else [text.decode() for text in response.output_tensors()[0].as_numpy()],
                flags,
            )
            for response, flags in request.sender.sent
        ]


@pytest.mark.parametrize("coalesce", [False, True])
def test_while_triton_is_behind(coalesce: bool) -> None:
    behind, request = Behind(), Request()
    responder = sending.StreamResponder(request, behind.thread, for_door=False, coalesce=coalesce)
    for word, final in (("a", False), ("b", False), ("c", True)):
        responder.send(delta(Sequence(word, 1), final=final), ())
    one_each: list[tuple[Any, int]] = [(["a"], 0), (["b"], 0), (["c"], FINAL)]
    assert behind.sent(request) == ([(["abc"], FINAL)] if coalesce else one_each)


def test_an_error_comes_behind_what_waits() -> None:
    behind, request = Behind(), Request()
    responder = sending.StreamResponder(request, behind.thread, for_door=False, coalesce=True)
    responder.send(delta(Sequence("a", 1)), ())
    responder.send(delta(Sequence("b", 1)), ())
    responder.fail(errors.NotFound())
    found = behind.sent(request)
    assert found[0] == (["ab"], 0)
    assert found[1][0].startswith("not_found:") and found[1][1] == FINAL


def test_streams_are_not_mixed() -> None:
    behind, requests = Behind(), (Request(), Request())
    responders = [
        sending.StreamResponder(request, behind.thread, for_door=False, coalesce=True)
        for request in requests
    ]
    for word in ("a", "b"):
        for number, responder in enumerate(responders):
            responder.send(delta(Sequence(f"{word}{number} ", 1)), ())
    assert behind.sent(requests[0]) == [(["a0 b0 "], 0)]
    assert behind.sent(requests[1]) == [(["a1 b1 "], 0)]
