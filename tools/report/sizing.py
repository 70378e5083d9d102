"""How many servers hold a latency goal: the trace, played to the simulated engine."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from loadtests.results import Request, Run
from tools.bench.figures import percentile
from tools.report.figures import Number, Plan, Side, Sizing
from tools.report.fitting import factor_of, gaps_of, stretched
from tools.report.order import Order, Room
from tools.report.reading import Loaded, ReportProblem
from tools.simulate.engine import Job, StepCost, simulate

HOURS_PER_MONTH = 730
#: More servers than this and the goal is out of reach for another reason.
MOST = 64
#: At least so many requests are simulated; the trace is repeated until there are.
REQUESTS = 4000
#: Outcomes of a request that found no server.
_AWAY = ("transport", "unavailable")
#: Where there is one queue, everybody is of one department.
_EVERYONE = "everyone"


@dataclasses.dataclass(frozen=True)
class Wish:
    """What is asked of the servers. ``goal_s``: P99 to the first token, seconds."""

    goal_s: float = 1.0
    #: Requests a second; None: as many as the trace had.
    rate: float | None = None
    price_per_hour: float | None = None
    #: None: as the run's engine had, or the demo's.
    seats: int | None = None
    slots: int | None = None
    prompt_tokens: int = 32
    #: Whether the costs are stretched to the run's.
    fit: bool = True
    cost: StepCost = dataclasses.field(default_factory=StepCost)


def jobs_of(requests: Sequence[Request], prompt_tokens: int) -> list[Job]:
    """The good requests as the simulator's; what was never answered gets its department's median.

    Those that found no server are left out: their callers came again. Times are from the first on.
    """
    good = sorted(
        (r for r in requests if r.kind == "good" and r.outcome not in _AWAY), key=lambda r: r.t
    )
    written = defaultdict(list)
    for request in good:
        if request.outcome == "ok" and request.tokens:
            written[request.department].append(request.tokens)
    usual = {name: round(statistics.median(tokens)) for name, tokens in written.items()}
    adapters: dict[str, int] = {}
    return [
        Job(
            at_s=request.t - good[0].t,
            department=request.department,
            adapter=None
            if request.lora_id is None
            else adapters.setdefault(request.lora_id, len(adapters)),
            tokens=prompt_tokens,
            output=(request.tokens if request.outcome == "ok" else 0)
            or usual.get(request.department, 1),
        )
        for request in good
    ]


def rate_of(jobs: Sequence[Job]) -> float:
    """Requests a second of a trace."""
    span = jobs[-1].at_s
    return (len(jobs) - 1) / span if span > 0 else float(len(jobs))


def scaled(jobs: Sequence[Job], rate: float, requests: int = REQUESTS) -> list[Job]:
    """The trace at another rate, repeated until there are so many requests."""
    stretch = rate_of(jobs) / rate
    period = len(jobs) / rate
    rounds = -(-requests // len(jobs))
    return [
        dataclasses.replace(job, at_s=number * period + job.at_s * stretch)
        for number in range(rounds)
        for job in jobs
    ]


def room_of(run: Run, wish: Wish) -> Room:
    """What was asked for, else what the run's engine had, else the demo's."""
    engine, usual = run.settings.get("engine", {}), Room()
    return Room(
        wish.seats or engine.get("max_num_seqs", usual.seats),
        wish.slots or engine.get("max_loras", usual.slots),
    )


def waits(
    jobs: Sequence[Job], servers: int, order: Order, room: Room, cost: StepCost
) -> dict[str, list[float]]:
    """Times to the first token by department, with requests dealt to servers at random."""
    dealt = np.random.default_rng(0).integers(servers, size=len(jobs))
    found: dict[str, list[float]] = defaultdict(list)
    for server in range(servers):
        own = [
            dataclasses.replace(
                job, stream=n, department=job.department if order.fair else _EVERYONE
            )
            for n, job in enumerate(jobs)
            if dealt[n] == server
        ]
        for done in simulate(iter(own), order.chooser(room), cost):
            found[jobs[done.job.stream].department].append(done.first_s - done.job.at_s)
    return found


def worst(times: dict[str, list[float]]) -> tuple[str, float]:
    """The department with the longest P99, and that."""
    p99 = {name: percentile(values, 99) for name, values in times.items()}
    name = max(p99, key=lambda key: (p99[key], key))
    return name, p99[name]


def sizing(jobs: Sequence[Job], rate: float, side: Side, room: Room, wish: Wish) -> Sizing:
    """The fewest servers that hold the goal for one side."""
    order = Order.of(side.protections)
    load = scaled(jobs, rate)
    tried: dict[int, tuple[str, float]] = {}

    def holds(servers: int) -> bool:
        tried[servers] = worst(waits(load, servers, order, room, wish.cost))
        return tried[servers][1] <= wish.goal_s

    instances = fewest(holds)
    name, p99 = tried[instances or MOST]
    once = waits(jobs, 1, order, room, wish.cost)
    alone = [wait for times in once.values() for wait in times]
    price = wish.price_per_hour
    bought = None if instances is None or price is None else instances * price * HOURS_PER_MONTH
    measured = side.departments[0].ttft
    return Sizing(
        label=side.label,
        order=str(order),
        instances=instances,
        p99=p99,
        worst_department=name,
        n=len(load),
        cost_per_month=bought,
        simulated_p50=Number(value=percentile(alone, 50), n=len(alone)),
        measured_p50=Number(value=measured.p50, n=measured.n),
    )


def fewest(holds: Callable[[int], bool], most: int = MOST) -> int | None:
    """The smallest number from 1 to ``most`` that holds, where what holds goes on holding."""
    low, high = 0, 1
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def plan(loaded: Loaded, sides: Sequence[Side], wish: Wish) -> Plan:
    """Both sides under the same load: that of one run.

    Raises:
        ReportProblem: it had no good request.
    """
    jobs = jobs_of(loaded.requests, wish.prompt_tokens)
    if not jobs:
        raise ReportProblem(f"{loaded.folder}: no good request among them: nothing to size for")
    room = room_of(loaded.run, wish)
    rate = wish.rate or rate_of(jobs)
    gaps = gaps_of(loaded.requests) if wish.fit else []
    order = Order.of(loaded.run.protections)
    factor = factor_of(jobs, gaps, order, room, wish.cost)
    cost = stretched(wish.cost, factor)
    wish = dataclasses.replace(wish, cost=cost)
    return Plan(
        goal_s=wish.goal_s,
        rate=rate,
        price_per_hour=wish.price_per_hour,
        most=MOST,
        assumptions=(
            f"A step takes {cost.fixed_s * 1e3:.3g} ms, {cost.per_sequence_s * 1e3:.3g} ms for "
            f"each sequence, {cost.per_prompt_token_s * 1e3:.3g} ms for each prompt token and "
            f"{cost.per_switch_s * 1e3:.3g} ms for each switch of a slot.",
            f"That is what was given times {factor:.3g}, so that tokens come as far apart as in "
            f"the second run (n={len(gaps)} answers).",
            f"Each server computes {room.seats} sequences at once and has {room.slots} slots.",
            f"Arrivals, departments, adapters and answer lengths are those of the second run, "
            f"stretched to {rate:.3g} requests a second; a prompt has {wish.prompt_tokens} tokens.",
            "A loop's requests come when they came in that run, also where it is answered sooner.",
            "Requests are dealt to servers at random; every server has every adapter at hand.",
            "Requests enter the engine by the server's own admission, set as in each run.",
            "Nothing but waiting and computing takes time: no network, no cold loads, no faults.",
            "Callers wait as long as it takes; refusals and deadlines are left out.",
        ),
        sides=tuple(sizing(jobs, rate, side, room, wish) for side in sides),
    )
