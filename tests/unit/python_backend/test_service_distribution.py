"""Mode ``distribution`` as the service answers in it, over the fake engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from python_backend.ticket import Part
from tests.unit.python_backend.service_house import DIGEST, House, run, until

OTHER, THIRD = "c" * 64, "d" * 64
PARTS = (Part("fin_risk_v1", DIGEST, 0.3), Part("svc_chat_v1", OTHER, 0.6))
#: Fake tokens are numbered from a version's id on; base's from 0.
RISK, CHAT = 1, 2


def prepared(house: House) -> None:
    house.versions.register("svc_chat_v1", OTHER, Path("staged"))
    house.versions.register("qa_testgen_v1", THIRD, Path("staged"))


def asked(house: House, parts: tuple[Part, ...] = PARTS, **sampling: Any) -> Any:
    found = {"max_tokens": 3, "temperature": 0.0, **sampling}
    return house.call(ticket_changes={"parts": parts}, fusion="distribution", sampling=found)


def test_the_mixture_answers_as_one() -> None:
    async def test(house: House) -> None:
        prepared(house)
        call, ticket = asked(house)
        answer = (await house.handle(call)).answer
        assert answer.sequences[0].text.endswith(f" t{CHAT}" * 3)
        assert answer.sequences[0].num_tokens == 3
        assert (answer.final, answer.request_uid) == (True, ticket.uid)
        assert answer.lora_served.startswith("fin_risk_v1*0.3+svc_chat_v1*0.6@")
        assert json.loads(answer.fusion_served) == {
            "mode": "distribution",
            "expression": "fin_risk_v1*0.3+svc_chat_v1*0.6",
            "weights": {"fin_risk_v1": 0.3, "svc_chat_v1": 0.6},
            "base": 0.1,
        }
        # A session each, base's among them, with a salt of its own.
        assert len(house.engine.jobs) == len({job.cache_salt for job in house.engine.jobs}) == 3
        assert house.versions.leases == 0

    run(test, max_loras=3)


def test_every_parts_tokens_are_charged() -> None:
    async def test(house: House) -> None:
        prepared(house)
        single, _ = house.call(sampling={"max_tokens": 3}, lora="fin_risk_v1")
        await house.handle(single)
        one = house.admission.scheduler.department("fin").counter
        await house.handle(asked(house)[0])
        three = house.admission.scheduler.department("fin").counter - one
        assert three == pytest.approx(3 * one)

    run(test, max_loras=3)


def test_a_part_that_has_gone() -> None:
    async def test(house: House) -> None:
        error = (await house.handle(asked(house)[0])).error
        assert error.code == "not_found"
        assert house.versions.leases == 0

    run(test)


def test_an_engine_with_too_few_slots() -> None:
    async def test(house: House) -> None:
        prepared(house)
        error = (await house.handle(asked(house)[0])).error
        assert (error.code, "more slots" in error.message) == ("invalid_argument", True)
        assert house.versions.leases == 0

    run(test, max_loras=2)


def test_many_at_once_and_some_leave() -> None:
    async def test(house: House) -> None:
        prepared(house)
        swapped = (Part("qa_testgen_v1", THIRD, 0.5), Part("svc_chat_v1", OTHER, 0.5))
        calls = [asked(house, PARTS if n % 2 else swapped, max_tokens=5) for n in range(60)]
        tasks = [house.begin(call)[0] for call, _ in calls]
        await until(lambda: house.engine.running != set())
        for _, ticket in calls[::3]:
            await house.handle(house.cancel(ticket))
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
        assert house.versions.leases == 0

    run(test, limit=400, max_loras=3, step_s=0.0005)


def test_a_deadline_ends_all_parts() -> None:
    async def test(house: House) -> None:
        prepared(house)
        call, _ = house.call(
            ticket_changes={"parts": PARTS},
            fusion="distribution",
            sampling={"max_tokens": 1000, "temperature": 0.0},
            deadline_s=0.05,
            prompt="one",
        )
        error = (await house.handle(call)).error
        assert error.code == "deadline_exceeded"
        assert house.versions.leases == 0

    run(test, max_loras=3, max_model_len=4096, step_s=0.001)
