"""The faults of a run: planned before it starts, injected beside it, told by its requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from loadtests import results
from loadtests.faults import room
from loadtests.faults.house import House
from loadtests.faults.injector import Injector
from loadtests.faults.kinds import KINDS, NEED_ROOM
from loadtests.faults.outcome import outcomes
from loadtests.faults.schedule import Planned, ScheduleError, plan
from loadtests.problem import LoadProblem
from loadtests.results import Change, Fault, Request, Verdict
from loadtests.scenario import Options
from loadtests.target import Target

#: A supervisor that takes longer than this to bring a server back does not do, seconds.
RECOVERY_LIMIT_S = 120.0
#: What `tools serve` is told, so that it brings back what is killed.
SUPERVISED = ("--restart", "--max-failures", "100")


def planned(options: Options, seconds: float, say: Callable[[str], None]) -> tuple[Planned, ...]:
    """The faults that were asked for.

    Raises:
        LoadProblem: they cannot be planned so, or not on this machine or server.
    """
    if not options.faults:
        return ()
    if options.server is not None:
        raise LoadProblem("--faults: a server that is there is not ours to break; leave --server")
    known, problem = list(KINDS), room.unavailable()
    if problem is not None and options.faults.strip() == "all":
        say(f"left out: {', '.join(NEED_ROOM)}: {problem}")
        known = [name for name in known if name not in NEED_ROOM]
    try:
        faults = plan(options.faults, seconds, known)
    except ScheduleError as error:
        raise LoadProblem(f"--faults: {error}") from None
    if problem is not None and in_room(faults):
        raise LoadProblem(f"--faults: {problem}")
    return faults


def in_room(faults: Iterable[Planned]) -> bool:
    """Whether the server needs small file systems of its own."""
    return any(fault.kind in NEED_ROOM for fault in faults)


def house_of(server: Target) -> House:
    """Where a server of our own has what faults spoil."""
    assert server.state is not None
    return House(server.folder / "serving.yaml", server.state)


@contextlib.contextmanager
def beside(
    faults: Sequence[Planned],
    server: Target,
    now: Callable[[], float],
    say: Callable[[str], None],
) -> Iterator[Injector | None]:
    """Injects the faults while the block runs; none where there are none.

    Args:
        now: seconds since the start of the load.
    """
    if not faults or server.state is None:
        yield None
        return
    with Injector(house_of(server), faults, now, say) as injector:
        yield injector


def told(
    injector: Injector | None, folder: Path, requests: Sequence[Request], seconds: float
) -> tuple[Fault, ...]:
    """What the faults did, also into ``faults.jsonl``."""
    if injector is None:
        return ()
    found = outcomes(injector.injected, requests, seconds)
    results.write_lines(folder / results.FAULTS, found)
    return tuple(found)


def apart(requests: Sequence[Request], faults: Sequence[Fault]) -> tuple[Request, ...]:
    """The requests that no fault hurt, and answers of a wrong adapter whenever they came."""
    times = [_time(fault) for fault in faults if fault.down is not None]
    return tuple(
        request
        for request in requests
        if request.route == "wrong"
        or not any(
            request.sent <= end and request.sent + request.total >= begin for begin, end in times
        )
    )


def changes_apart(changes: Sequence[Change], faults: Sequence[Fault]) -> tuple[Change, ...]:
    """What an operator did while no fault hurt anybody."""
    times = [_time(fault) for fault in faults if fault.down is not None]
    return tuple(
        change
        for change in changes
        if not any(change.t <= end and change.t + change.seconds >= begin for begin, end in times)
    )


def _time(fault: Fault) -> tuple[float, float]:
    return fault.t, float("inf") if fault.healed is None else fault.t + fault.healed


def verdicts(planned: Sequence[Planned], faults: Sequence[Fault]) -> tuple[Verdict, ...]:
    """Whether every fault was injected, and the server came back each time, in time."""
    if not planned:
        return ()
    wanted, count = len(planned), len(faults)
    injected = Verdict(
        name="faults (at least)", measured=count, limit=wanted, ok=count >= wanted, samples=wanted
    )
    if not faults:
        return (injected,)
    lasting = [fault.healed for fault in faults]
    healed = [value for value in lasting if value is not None]
    worst = max(healed) if len(healed) == len(lasting) else None
    in_time = worst is not None and worst <= RECOVERY_LIMIT_S
    back = Verdict(
        name="recovery", measured=worst, limit=RECOVERY_LIMIT_S, ok=in_time, samples=count
    )
    return injected, back
