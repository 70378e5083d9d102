"""What a call with a ticket, or without one, is answered."""

from __future__ import annotations

from typing import Any

import pytest

from python_backend.service import Call
from python_backend.ticket import sha256_hex
from tests.unit.python_backend.service_house import DIGEST, KEY, PROMPT, House, run


def test_a_whole_answer() -> None:
    async def test(house: House) -> None:
        call, signed = house.call(sampling={"max_tokens": 2, "n": 2})
        answer = (await house.handle(call)).answer
        name = f"fin_risk_v1@{DIGEST[:12]}"
        assert [s.text for s in answer.sequences] == [f"{PROMPT} {name} {name}"] * 2
        assert [s.num_tokens for s in answer.sequences] == [2, 2]
        assert [s.finish_reason for s in answer.sequences] == ["length", "length"]
        assert (answer.num_input_tokens, answer.lora_served) == (3, name)
        assert answer.request_uid == signed.uid

    assert run(test).engine.counts["abort"] == 0


def test_base_without_the_prompt() -> None:
    async def test(house: House) -> None:
        call, _ = house.call(lora=None, prepend_prompt=False)
        answer = (await house.handle(call)).answer
        assert (answer.sequences[0].text, answer.lora_served) == (" base base base", "base")

    run(test)


def test_a_stream_after_an_early_accept() -> None:
    async def test(house: House) -> None:
        call, _ = house.call(stream=True, early_accept=True)
        recorder = await house.handle(call)
        first, *answers = recorder.events
        assert first == "accept"
        assert [a.final for a in answers] == [False, False, True]
        # A stream holds the answer alone, never the prompt.
        text = "".join(a.sequences[0].text for a in answers)
        assert text == f" fin_risk_v1@{DIGEST[:12]}" * 3

    run(test)


def test_departments_have_prefix_caches_of_their_own() -> None:
    async def test(house: House) -> None:
        for department in ("fin", "svc", "fin"):
            call, _ = house.call(ticket_changes={"department": department})
            assert (await house.handle(call)).answer.final
        first, other, again = (job.cache_salt for job in house.engine.jobs)
        assert first == again != other
        assert KEY.hex() not in first and "fin" not in first

    run(test)


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "c" * 32},
        {"audience": "other"},
        {"operation": "admin"},
        {"expires_ns": 1_000},
        {"prompt_sha256": sha256_hex(b"another")},
        {"request_sha256": sha256_hex(b"another")},
    ],
)
def test_a_ticket_for_something_else(changes: dict[str, Any]) -> None:
    async def test(house: House) -> None:
        call, _ = house.call(ticket_changes=changes, early_accept=True)
        recorder = await house.handle(call)
        assert recorder.error.code == "unauthenticated"
        assert recorder.events == [recorder.error]  # not even accepted
        assert house.engine.jobs == []

    run(test)


@pytest.mark.parametrize("token", ["", "x", "a.b", "é", "A" * 20_000])
def test_no_ticket(token: str) -> None:
    async def test(house: House) -> None:
        assert (await house.handle(Call(b"", b"", token))).error.code == "unauthenticated"

    run(test)


def test_a_ticket_is_good_once() -> None:
    async def test(house: House) -> None:
        call, _ = house.call()
        assert (await house.handle(call)).answer.final
        assert (await house.handle(call)).error.code == "unauthenticated"
        assert len(house.engine.jobs) == 1

    run(test)


def test_an_adapter_that_fails_is_nobody_elses_business() -> None:
    async def test(house: House) -> None:
        house.engine.failing.add("fin_risk_v1")
        assert (await house.handle(house.call()[0])).error.code == "adapter_failed"
        assert (await house.handle(house.call(lora=None)[0])).answer.lora_served == "base"
        gone, _ = house.call(lora="fin_gone_v1")
        assert (await house.handle(gone)).error.code == "not_found"

    run(test)


@pytest.mark.parametrize(
    ("words", "code"), [(0, "invalid_argument"), (63, ""), (64, "invalid_argument")]
)
def test_prompt_length(words: int, code: str) -> None:
    async def test(house: House) -> None:
        recorder = await house.handle(house.call(prompt=" ".join(["w"] * words))[0])
        (end,) = recorder.ends
        assert getattr(end, "code", "") == code
        if words == 64:
            assert end.message == (
                "invalid_argument: text_input: the prompt has 64 tokens; "
                "the model takes at most 63."
            )

    run(test, max_model_len=64)


def test_what_the_engine_refuses() -> None:
    async def test(house: House) -> None:
        error = (await house.handle(house.call(sampling={"temperature": -1.0})[0])).error
        assert (error.code, error.sentence) == (
            "invalid_argument",
            "temperature: the engine refuses this value.",
        )

    run(test)
