"""Mixtures as the service answers with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from python_backend import lora_metrics
from python_backend.completion import NoSink
from python_backend.completion_metrics import MetricsSink
from python_backend.engine.base import Version
from python_backend.errors import Overloaded
from python_backend.leasing import Leases
from python_backend.service import GenerateService
from python_backend.ticket import Part
from tests.unit.python_backend.service_house import BOOT, DIGEST, KEY, House, Notes, run

PARTS = (Part("fin_risk_v1", DIGEST, 0.6), Part("svc_chat_v1", "c" * 64, 0.3))
MIXED = "fin_risk_v1*0.6+svc_chat_v1*0.3"


class Mixtures:
    """Gives one version for everything; remembers who asked."""

    def __init__(self, house: House) -> None:
        self.version = house.versions.register(MIXED, "e" * 64, Path("mixed"))
        self.asked: list[tuple[tuple[Part, ...], str]] = []
        self.held = 0
        self.error: Exception | None = None

    @asynccontextmanager
    async def lease(self, parts: tuple[Part, ...], department: str) -> AsyncIterator[Version]:
        self.asked.append((parts, department))
        if self.error is not None:
            raise self.error
        self.held += 1
        try:
            yield self.version
        finally:
            self.held -= 1


def mixing(house: House) -> tuple[Mixtures, Notes]:
    """Has the house's service mix."""
    mixtures, sink = Mixtures(house), Notes()
    info = house.service._runner._info
    house.service = GenerateService(
        house.engine,
        info,
        house.versions,
        house.admission,
        key=KEY,
        boot_id=BOOT,
        clock_ns=lambda: house.now_ns,
        sink=sink,
        mixtures=mixtures,
    )
    return mixtures, sink


def mixed_call(house: House, parts: tuple[Part, ...] = PARTS, **options: Any) -> Any:
    call, _ = house.call(ticket_changes={"parts": parts}, fusion="weights", **options)
    return call


def test_a_mixture_answers_and_says_so() -> None:
    async def test(house: House) -> None:
        mixtures, sink = mixing(house)
        answer = (await house.handle(mixed_call(house, prepend_prompt=False))).answer
        name = f"{MIXED}@{'e' * 12}"
        assert answer.lora_served == name
        assert answer.sequences[0].text == f" {name}" * 3
        assert json.loads(answer.fusion_served) == {
            "mode": "weights",
            "expression": MIXED,
            "weights": {"fin_risk_v1": 0.6, "svc_chat_v1": 0.3},
            "base": 0.1,
        }
        assert mixtures.asked == [(PARTS, "fin")] and mixtures.held == 0
        (completion,) = sink.completions
        assert (completion.mode, completion.outcome, completion.served) == ("weights", "ok", name)

    run(test)


@pytest.mark.parametrize(
    ("weight", "served"), [(1.0, f"fin_risk_v1@{DIGEST[:12]}"), (None, "base")]
)
def test_what_needs_no_mixing_is_not_mixed(weight: float | None, served: str) -> None:
    parts = () if weight is None else (Part("fin_risk_v1", DIGEST, weight),)

    async def test(house: House) -> None:
        mixtures, _ = mixing(house)
        answer = (await house.handle(mixed_call(house, parts))).answer
        assert answer.lora_served == served and mixtures.asked == []
        assert json.loads(answer.fusion_served)["mode"] == "weights"
        plain = (await house.handle(house.call()[0])).answer
        assert plain.fusion_served == ""

    run(test)


def test_one_that_cannot_be_made_is_counted() -> None:
    async def test(house: House) -> None:
        mixtures, sink = mixing(house)
        mixtures.error = Overloaded("too many different mixtures are in use.", retry_after=1)
        recorder = await house.handle(mixed_call(house, early_accept=True))
        # Accepted first: a door's thread must not wait for a mixture to be made.
        assert recorder.events == ["accept", recorder.error]
        assert recorder.error.code == "overloaded"
        put: list[Any] = []
        MetricsSink(NoSink(), put.extend).record(sink.completions[0])
        labels = (("mode", "weights"), ("outcome", "overloaded"))
        assert [u.labels for u in put if u.name == lora_metrics.FUSIONS] == [labels]

    run(test)


def test_an_engine_that_mixes_nothing() -> None:
    async def test(house: House) -> None:
        recorder = await house.handle(mixed_call(house))
        assert recorder.error.code == "unavailable"

    run(test)


def test_leases_of_nothing(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        _, signed = house.call(lora=None)
        async with Leases(house.versions).of(signed) as version:
            assert version is None

    run(test)
