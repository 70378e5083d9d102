"""One run of a scenario: server, load, samples, budget; nothing is left but the results."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadtests import budget, configurations, machine, results, target
from loadtests.changes import Changes
from loadtests.configurations import CONFIGURATIONS, merged
from loadtests.faults import beside
from loadtests.faults.kept import kept
from loadtests.faults.schedule import Planned
from loadtests.house import build_house
from loadtests.locusts import PLAN, Locust, LocustFailed, locust
from loadtests.measures import Seen
from loadtests.plan import ZERO, Load, Plan
from loadtests.problem import LoadProblem
from loadtests.results import Run, Verdict
from loadtests.sampler import Sampler, sample
from loadtests.scenario import Options, Scenario, Size
from loadtests.scenarios import named
from loadtests.target import Target
from tools.admin.client import AdminClient

_LOOK_S = 0.5
ATTACHED = "as it is"


def run_scenario(name: str, options: Options, out: Path, console: Console | None = None) -> Path:
    """Runs a scenario and writes its results into the folder ``out``.

    Returns:
        ``out``, with ``run.json`` in it.

    Raises:
        LoadProblem: bad input, or the server that was named is not there.
        RuntimeError: a server or locust did not start or end.
    """
    console = console or Console(stderr=True)
    scenario = named(name)
    limits = budget.read_budget(options.budget or budget.DEFAULT, name)
    size = sizes(scenario, options)
    protections = _protections(options)

    def say(text: str) -> None:
        console.print(text, highlight=False)

    faults = beside.planned(options, size.seconds, say)
    _new_folder(out)
    with _target(scenario, size, options, protections, out, say, faults) as server:
        load = scenario.build(server.cast, size)
        started, seen, came_back = _load(load, server, options, out, console, faults)
    verdicts = (*limits.judge(seen), *came_back)
    run = Run(
        scenario=name,
        configuration=options.configuration if options.server is None else ATTACHED,
        options={**size.model_dump(), "workers": options.workers},
        started=started.isoformat(),
        seconds=load.seconds,
        machine=machine.machine(),
        versions=machine.versions(),
        settings=_settings(scenario, size, protections) if options.server is None else {},
        protections=protections if options.server is None else {},
        trace=load.digest,
        budget=verdicts,
        ok=all(verdict.ok for verdict in verdicts),
    )
    results.write_run(out, run)
    return out


def sizes(scenario: Scenario, options: Options) -> Size:
    """The scenario's sizes with what the options change.

    Raises:
        LoadProblem: one cannot be.
    """
    try:
        return Size.model_validate({**scenario.size.model_dump(), **options.size})
    except ValidationError as error:
        problem = error.errors()[0]
        raise LoadProblem(f"--{problem['loc'][0]}: {problem['msg']}") from None


def make_house(name: str, options: Options, folder: Path) -> None:
    """The folder that a server for a scenario is started from, to be served elsewhere.

    Raises:
        LoadProblem: the folder is not empty, or the demo does not do.
    """
    scenario = named(name)
    size, protections = sizes(scenario, options), _protections(options)
    _new_folder(folder)
    build_house(
        folder,
        options.demo.resolve(),
        scenario.markers(size),
        scenario.spares(size),
        scenario.settings(size),
        protections,
    )


def _protections(options: Options) -> dict[str, bool]:
    if options.configuration not in CONFIGURATIONS:
        known = ", ".join(CONFIGURATIONS)
        raise LoadProblem(f"--configuration {options.configuration}: not one of {known}")
    return CONFIGURATIONS[options.configuration]


def _settings(scenario: Scenario, size: Size, protections: Mapping[str, bool]) -> dict[str, Any]:
    return merged(scenario.settings(size), configurations.settings(protections))


@contextlib.contextmanager
def _target(
    scenario: Scenario,
    size: Size,
    options: Options,
    protections: Mapping[str, bool],
    out: Path,
    say: Callable[[str], None],
    faults: Sequence[Planned] = (),
) -> Iterator[Target]:
    markers, spares = scenario.markers(size), scenario.spares(size)
    if options.server is not None:
        server = target.attached(options.server, options.demo, markers, spares)
        server.check()
        yield server
        return
    with target.started(
        options.demo,
        markers,
        spares,
        scenario.settings(size),
        protections,
        out,
        say,
        flags=beside.SUPERVISED if faults else (),
        in_room=beside.in_room(faults),
    ) as server:
        untouched = sample(time.time(), server.metrics, server.pid)
        server.check()
        yield dataclasses.replace(server, untouched=untouched)


def make_plan(name: str, options: Options, folder: Path) -> None:
    """``plan.json`` for a server that is there, to run locust by hand.

    Raises:
        LoadProblem: no server is named, it is not there, or the folder is not empty.
    """
    scenario = named(name)
    size = sizes(scenario, options)
    if options.server is None:
        raise LoadProblem("--server: name the one that the plan is for, HOST:HTTP,GRPC,METRICS")
    server = target.attached(
        options.server, options.demo, scenario.markers(size), scenario.spares(size)
    )
    server.check()
    _new_folder(folder)
    plan = _plan(scenario.build(server.cast, size), server, options)
    (folder / PLAN).write_text(plan.model_dump_json(), "utf-8")


def _new_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise LoadProblem(f"{folder}: is not empty; choose another")
    folder.mkdir(parents=True, exist_ok=True)


def _plan(load: Load, server: Target, options: Options) -> Plan:
    return Plan(
        load=load,
        http=server.http,
        grpc=server.grpc,
        keys_file=server.keys_file.resolve(),
        words=server.cast.words,
        patience_s=options.patience_s,
        workers=options.workers,
    )


def _load(
    load: Load,
    server: Target,
    options: Options,
    out: Path,
    console: Console,
    faults: Sequence[Planned] = (),
) -> tuple[datetime.datetime, Seen, tuple[Verdict, ...]]:
    plan = _plan(load, server, options)
    with locust(plan, out, options.web_port) as running:
        zero = running.zero()

        def now() -> float:
            return time.time() - zero

        def say(text: str) -> None:
            console.print(text, highlight=False)

        before = server.untouched
        if before is not None:
            before = before.model_copy(update={"t": round(before.t - zero, 3)})
        operator = AdminClient(f"http://{server.http}", server.keys().get("admin", ""))
        with (
            Sampler(out, server.metrics, server.pid, now, before),
            Changes(out, load.acts, operator, server.spares, now),
            beside.beside(faults, server, now, say) as injector,
        ):
            _wait(running, load, now, console)
        running.check()
    results.merge(out)
    for name in (ZERO, PLAN):
        (out / name).unlink()
    requests = tuple(results.requests(out))
    hurt = beside.told(injector, out, requests, load.seconds)
    seen = Seen(
        requests=beside.apart(requests, hurt),
        samples=tuple(results.samples(out)),
        seconds=load.seconds,
        calm_s=load.calm_s,
        changes=beside.changes_apart(tuple(results.changes(out)), hurt),
    )
    came_back = beside.verdicts(faults, hurt)
    if faults:
        came_back += kept(beside.house_of(server), requests)
    return datetime.datetime.fromtimestamp(zero, datetime.UTC), seen, came_back


def _wait(running: Locust, load: Load, now: Any, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("load", total=load.seconds)
        while running.running:
            at = now()
            what = "load" if at < load.seconds else "last answers"
            progress.update(task, completed=min(at, load.seconds), description=what)
            if at > running.limit_s():
                raise LocustFailed(f"locust did not end: {running.said()}")
            time.sleep(_LOOK_S)
