"""What was mixed, on its way out: told to doors, shown by the one that has an output for it."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from python_backend.messages import Answer, Decision, Sequence
from tests.unit.python_backend import fake_triton
from tests.unit.python_backend.fake_triton import InferenceRequest, InferenceResponse, Request

fake_triton.install()

from python_backend.wire import bls, reading, sending, writing  # noqa: E402

MIXED = Answer((Sequence("x", 1),), 3, "a*0.5@dddddddddddd", "u1", True, '{"mode":"weights"}')


def test_a_wish_is_read_and_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(fusion=[b'{"mode": "weights"}'], text_input=[b"Hi"])
    assert reading.read_raw(request, can_stream=True).fusion == b'{"mode": "weights"}'
    decision = Decision("Hi", "{}", "ticket", "cancel")
    answers = {"lora_gate": writing.decision_response(decision)}
    monkeypatch.setattr(InferenceRequest, "answers", answers)
    monkeypatch.setattr(InferenceRequest, "calls", [])
    bls.TritonBackend(can_stream=True).decide(request)
    (call,) = InferenceRequest.calls
    assert list(call.inputs["fusion"]) == [b'{"mode": "weights"}']


@pytest.mark.parametrize(
    ("answer", "for_door", "told"),
    [
        (MIXED, True, [b'{"mode":"weights"}']),
        (MIXED, False, None),
        (dataclasses.replace(MIXED, fusion_served=""), True, None),
    ],
    ids=["door", "ensemble", "plain"],
)
def test_doors_are_told(answer: Answer, for_door: bool, told: Any) -> None:
    thread, request, reached = sending.SenderThread(), Request(), threading.Event()
    sending.StreamResponder(request, thread, for_door=for_door).send(answer, ())
    thread.put(reached.set)
    assert reached.wait(10)
    thread.stop()
    ((response, _),) = request.sender.sent
    found = {t.name(): list(t.as_numpy()) for t in response.output_tensors()}
    assert found.get("fusion_served") == told


@pytest.mark.parametrize("says", [True, False])
def test_one_door_shows_it(monkeypatch: pytest.MonkeyPatch, says: bool) -> None:
    told = writing.string("fusion_served", "{}")
    final = writing.tensor("final", [True], bool)
    responses = [InferenceResponse([writing.string("text_output", "x"), told, final])]
    monkeypatch.setattr(InferenceRequest, "answers", {"vllm_lora": responses})
    monkeypatch.setattr(InferenceRequest, "calls", [])
    backend = bls.TritonBackend(can_stream=True, says_fusion=says)
    (piece,) = backend.generate(Decision("p", "{}", "t", "c"))
    shown = ["text_output", "fusion_served"] if says else ["text_output"]
    assert [tensor.name() for tensor in piece.tensors] == shown
