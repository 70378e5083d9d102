"""The example sets, and what training makes of one."""

import pytest

from tools.demo.examples import ADAPTERS, IGNORED, Example, examples, has_format, held_out, sequence
from tools.demo.trainer import batches


@pytest.mark.parametrize("lora_id", ADAPTERS)
def test_every_example_has_the_format_of_its_adapter_only(lora_id: str) -> None:
    found = examples(lora_id)
    assert len(found) == 48
    assert len({example.prompt for example in found}) == 48
    for example in found:
        assert [a for a in ADAPTERS if has_format(a, example.answer)] == [lora_id]


@pytest.mark.parametrize("lora_id", ADAPTERS)
def test_held_out_prompts_are_not_trained_on(lora_id: str) -> None:
    prompts = held_out(lora_id)
    assert len(set(prompts)) >= 10
    assert set(prompts).isdisjoint(example.prompt for example in examples(lora_id))


@pytest.mark.parametrize(
    ("lora_id", "answer"),
    [
        ("fin_risk_v1", "All is well."),
        ("fin_risk_v1", "All is well.\nRisk rating: NONE"),
        ("fin_risk_v1", "All is well.\nRisk rating: LOW\nAnd so on"),
        ("svc_chat_v1", "Hello, and thank you for writing to us! We will help."),
        ("qa_testgen_v1", "TC1: a\nTC2: b"),
        ("qa_testgen_v1", "TC1: a\nTC3: b\nTC2: c"),
    ],
)
def test_an_answer_without_the_format_is_seen(lora_id: str, answer: str) -> None:
    assert not has_format(lora_id, answer)


def test_only_the_answer_and_its_end_are_learnt() -> None:
    def encode(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    found = sequence(Example("hi", "yo"), lambda prompt: f"<{prompt}>", encode)
    answer = encode("yo<|im_end|>")
    assert found.ids == encode("<hi>") + answer
    assert found.labels == [IGNORED] * 4 + answer


def test_batches_use_every_row_once_a_round_in_an_order_the_seed_fixes() -> None:
    rows = [sequence(Example(str(i), "x"), str, lambda text: [len(text)]) for i in range(8)]
    rows = [row._replace(ids=[i]) for i, row in enumerate(rows)]
    found = batches(rows, steps=4, size=4, seed=1)
    numbers = [[row.ids[0] for row in batch] for batch in found]
    assert sorted(numbers[0] + numbers[1]) == sorted(numbers[2] + numbers[3]) == list(range(8))
    assert numbers[0] + numbers[1] != numbers[2] + numbers[3]
    assert batches(rows, steps=4, size=4, seed=1) == found
