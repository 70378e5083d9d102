"""The health check and the parameters that switch it on."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from python_backend.engine.fake import FakeEngine
from python_backend.health import HealthCheck
from python_backend.metrics import Family, MakeSeries, MetricsOff
from python_backend.model_options import ModelOptions
from python_backend.server import EngineServer
from python_backend.service import Call
from python_backend.settings import Settings


class Watched:
    """A health check over an engine, and what came of it, in order."""

    def __init__(self, *, enabled: bool) -> None:
        self.engine = FakeEngine()
        asyncio.run(self.engine.start())
        self.happened: list[str] = []
        self._check = HealthCheck(enabled, lambda: self.happened.append("unload"))

    def ask(self) -> bool:
        """Whether a request may go on, as the engine model asks."""
        refusal = self._check.refusal(self.engine.alive)
        if refusal is None:
            return True
        self.happened.append(refusal.message)
        self._check.found_dead()
        return False


REFUSED = "unavailable: the engine has stopped. retry_after=30"


def test_a_living_engine_is_asked() -> None:
    watched = Watched(enabled=True)
    assert [watched.ask() for _ in range(3)] == [True] * 3
    assert watched.happened == []


def test_a_dead_engine_answers_unavailable_and_is_unloaded_once() -> None:
    watched = Watched(enabled=True)
    watched.engine.die()
    assert [watched.ask() for _ in range(3)] == [False] * 3
    # The answer first: a model that is unloaded can give none.
    assert watched.happened == [REFUSED, "unload", REFUSED, REFUSED]


def test_without_the_parameter_nothing_is_checked() -> None:
    watched = Watched(enabled=False)
    watched.engine.die()
    assert watched.ask()
    watched._check.found_dead()
    assert watched.happened == []


@pytest.mark.parametrize(
    ("value", "on"),
    [("true", True), ("True", True), ("TRUE", True), ("false", False), ("1", False), ("", False)],
)
def test_parameters_are_on_when_true(value: str, on: bool) -> None:
    parameters = {
        "REPORT_CUSTOM_METRICS": {"string_value": value},
        "ENABLE_VLLM_HEALTH_CHECK": {"string_value": value},
    }
    options = ModelOptions.from_triton(
        {
            "model_name": "m",
            "model_version": "1",
            "model_config": json.dumps({"parameters": parameters}),
        }
    )
    assert options == ModelOptions("m", "1", report_metrics=on, health_check=on)


def test_parameters_are_off_when_absent() -> None:
    args = {"model_name": "m", "model_version": "2", "model_config": "{}"}
    assert ModelOptions.from_triton(args) == ModelOptions("m", "2")


@pytest.mark.parametrize(
    ("report", "arguments", "wanted"),
    [
        (True, {}, True),
        (True, {"disable_log_stats": False}, True),
        (True, {"disable_log_stats": True}, False),
        (False, {}, False),
    ],
)
def test_metrics_are_wanted_by_parameter_and_engine_argument(
    tmp_path: Path, report: bool, arguments: dict[str, bool], wanted: bool
) -> None:
    settings = Settings.model_validate(
        {"adapters": {"root": tmp_path}, "policy": tmp_path / "p", "state_dir": tmp_path}
    )
    options = ModelOptions("m", "1", report_metrics=report)
    server = EngineServer(settings, tmp_path, options, Nowhere(), tmp_path, unload=lambda: None)
    assert server._new_metrics(arguments).wanted is wanted


def test_a_call_to_a_dead_engine_is_answered_before_the_model_is_unloaded(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"adapters": {"root": tmp_path}, "policy": tmp_path / "p", "state_dir": tmp_path}
    )
    happened: list[str] = []
    unloaded = threading.Event()

    def unload() -> None:
        happened.append("unload")
        unloaded.set()

    class Service:
        async def handle(self, call: Any, responder: Any, refusal: Any) -> None:
            happened.append("living" if refusal is None else refusal.message)

    options = ModelOptions("m", "1", health_check=True)
    server = EngineServer(settings, tmp_path, options, Nowhere(), tmp_path, unload)
    engine = FakeEngine()
    asyncio.run(engine.start())
    server._engine, server._service = engine, cast(Any, Service())
    server._thread.start()
    call, nobody = Call(b"", b"", ""), cast(Any, None)
    server.submit(call, nobody)
    engine.die()
    server.submit(call, nobody)
    assert unloaded.wait(10)
    server._loop.call_soon_threadsafe(server._loop.stop)
    server._thread.join(10)
    assert happened == ["living", REFUSED, "unload"]


class Nowhere:
    def create(self, family: Family) -> MakeSeries:
        raise MetricsOff
