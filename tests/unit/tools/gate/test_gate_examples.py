"""Examples for the gate: read strictly, held out by their prompt, and the demo's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.demo.examples import ADAPTERS
from tools.demo.gate_examples import demo_examples, general
from tools.gate.examples import Example, adapters, held_out, parse, read
from tools.gate.problem import GateTrainingError


def test_the_two_forms() -> None:
    assert parse({"prompt": "x", "adapter": "fin_risk_v1"}) == Example("x", {"fin_risk_v1": 1.0})
    assert parse({"prompt": "x", "adapter": "base"}) == Example("x", {"base": 1.0})
    mixture = parse({"prompt": "x", "mixture": {"fin_risk_v1": 0.5, "svc_chat_v1": 0.25}})
    assert mixture.target == {"fin_risk_v1": 0.5, "svc_chat_v1": 0.25, "base": 0.25}
    assert adapters([mixture]) == ("fin_risk_v1", "svc_chat_v1")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "not an example"),
        ({"prompt": "x"}, "not an example"),
        ({"prompt": "x", "adapter": "fin_risk_v1", "mixture": {}}, "not an example"),
        ({"prompt": " ", "adapter": "fin_risk_v1"}, "prompt is empty"),
        ({"prompt": 7, "adapter": "fin_risk_v1"}, "prompt is empty"),
        ({"prompt": "x", "adapter": "Fin"}, "not a lora_id"),
        ({"prompt": "x", "adapter": None}, "not a lora_id"),
        ({"prompt": "x", "mixture": []}, "not an object"),
        ({"prompt": "x", "mixture": {"fin_risk_v1": True}}, "not a number"),
        ({"prompt": "x", "mixture": {"fin_risk_v1": "0.5"}}, "not a number"),
        ({"prompt": "x", "mixture": {"fin_risk_v1": -0.1}}, "not between 0 and 1"),
        ({"prompt": "x", "mixture": {"fin_risk_v1": float("nan")}}, "not between 0 and 1"),
        ({"prompt": "x", "mixture": {"fin_risk_v1": 0.7, "svc_chat_v1": 0.7}}, "more than 1"),
    ],
)
def test_what_is_no_example(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(value)


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "x", "adapter": "base"}\n\n{"prompt": "y", "prompt": "z"}\n')
    with pytest.raises(GateTrainingError, match=r"data.jsonl:3: the key 'prompt' is given twice"):
        read(path)
    with pytest.raises(GateTrainingError, match="cannot be read"):
        read(tmp_path / "none.jsonl")


def test_the_demo_has_examples_of_every_kind() -> None:
    found = demo_examples()
    assert found == demo_examples(), "the same each time"
    assert adapters(found) == tuple(sorted(ADAPTERS))
    unseen = [example for example in found if held_out(example.prompt)]
    for kind in ({"base"}, *({name} for name in ADAPTERS)):
        assert any(example.target.keys() == kind for example in unseen), kind
    assert any(len(example.target) == 2 for example in unseen)
    by_prompt = {example.prompt: example.target for example in found}
    for example in found:
        assert by_prompt[example.prompt] == example.target, "one prompt, one answer"


def test_nothing_held_out_is_seen_inside_another_prompt() -> None:
    found = demo_examples()
    single = [e.prompt for e in found if len(e.target) == 1 and held_out(e.prompt)]
    assert len(single) > len(general()) // 10
    for example in found:
        if len(example.target) == 2 and not held_out(example.prompt):
            assert not any(prompt in example.prompt for prompt in single if len(prompt) > 12)
