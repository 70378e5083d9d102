"""What a scenario is given and what it makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from loadtests.cast import Cast
from loadtests.plan import Load


class Size(BaseModel):
    """How much of what. Each scenario has its own sizes, for two cores; options change them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(default=60.0, ge=5, allow_inf_nan=False)
    #: Open arrivals a second, all together.
    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    #: Closed loops.
    users: int = Field(default=8, ge=1)
    #: Adapters of those that are many.
    adapters: int = Field(default=4, ge=1)
    #: Tokens of an answer.
    tokens: int = Field(default=16, ge=1)
    seed: int = 0


class Options(BaseModel):
    """What a run is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration: str = "protected"
    #: A folder of ``tools demo``: model and markers.
    demo: Path = Path(".demo")
    #: Sizes that differ from the scenario's own, by the names of ``Size``.
    size: dict[str, float] = {}
    #: Processes that share the load.
    workers: int = Field(default=1, ge=1)
    #: Port of locust's web page; None: headless.
    web_port: int | None = None
    #: A server that is there, ``HOST:HTTP,GRPC,METRICS``; None: one is started.
    server: str | None = None
    #: Limits; None: those of ``loadtests/budget.toml``.
    budget: Path | None = None
    #: Faults to inject, ``NAME[@SECONDS][+SECONDS]`` with commas between; ``all`` for every one.
    faults: str = ""
    #: Longest time for one answer, seconds.
    patience_s: float = Field(default=30.0, gt=0)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A load with a name.

    Args:
        summary: a line for ``--help``.
        size: its own sizes.
        markers: how many adapters each department needs.
        build: the load for a cast.
        spares: markers that an operator brings in while it runs.
        settings: of ``serving.yaml``, on top of the demo's.
    """

    summary: str
    size: Size
    markers: Callable[[Size], Mapping[str, int]]
    build: Callable[[Cast, Size], Load]
    spares: Callable[[Size], int] = lambda size: 0
    settings: Callable[[Size], Mapping[str, Any]] = lambda size: {}
