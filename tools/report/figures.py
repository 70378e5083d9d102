"""What a report says, as plain values: each number stands with how many samples it is made of.

Times are seconds, memory is bytes. A number that cannot be made of what there is is None.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from loadtests.results import Verdict


class Frozen(BaseModel):
    """Values that do not change; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


#: A number of six digits after the point: more say nothing, and make the file larger.
Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]


class Number(Frozen):
    """One value made of ``n`` samples."""

    value: Rounded | None
    n: int


class Share(Frozen):
    """``part`` of ``n``, with the 95 % interval by Wilson; None of nothing."""

    part: int
    n: int
    value: Rounded | None
    low: Rounded | None
    high: Rounded | None


class Quantiles(Frozen):
    """Of ``n`` samples. ``thin``: so few that the P99 is one of the worst, not more."""

    n: int
    p50: Rounded | None
    p95: Rounded | None
    p99: Rounded | None
    thin: bool


class Department(Frozen):
    """What one department got; ``name`` is ``all`` for everybody together."""

    name: str
    #: From when a request was due, of good requests that were answered.
    ttft: Quantiles
    total: Quantiles
    #: Good requests that were answered, of those sent.
    answered: Share
    tokens_per_s: Number


class MemoryAfter(Frozen):
    """What the first answers of so many different adapters cost in memory."""

    adapters: int
    #: Growth of the resident memory of all processes.
    growth: int
    #: The same, over what was resident before the first request.
    of_resident: Rounded
    #: The same, over what the machine had left then.
    of_available: Rounded
    #: Samples it is made of: before, and until that moment.
    n: int


class Memory(Frozen):
    """Resident memory of the server's processes, pages they share counted in each."""

    peak: Number
    peak_at: Rounded | None
    #: By role of the process, at the peak.
    by_role: dict[str, int]
    after: tuple[MemoryAfter, ...]


class Refusal(Frozen):
    """Requests of one kind that ended in one way which is no answer."""

    kind: str
    reason: str
    count: int


#: A breaker's; ``server down``: nobody was there to say.
State = Literal["closed", "warning", "open", "half-open", "server down"]


class Interval(Frozen):
    """A breaker was in a state from ``begin`` to ``end``."""

    signal: str
    state: State
    begin: Rounded
    end: Rounded


class Series(Frozen):
    """Values over time."""

    name: str
    t: tuple[Rounded, ...]
    values: tuple[Rounded | None, ...]


class FaultSeen(Frozen):
    """One injected fault and what it did."""

    t: Rounded
    fault: str
    target: str
    down: Rounded | None
    healed: Rounded | None
    #: Good requests that failed from the fault until it had healed, by department.
    hurt: dict[str, int]
    #: Those among them whose answer had begun.
    broken_off: int
    #: Good requests that were under way or sent in that time.
    n: int


class Recovery(Frozen):
    """How available the server was, and how it came back."""

    #: Of the seconds in which a good request ended, those in which one was answered.
    available: Share
    #: Share of the run in which no fault kept everybody from an answer; ``n``: faults.
    up: Number
    #: The longest time without one good answer while good requests were sent.
    longest_gap: Number
    #: The longest recovery, of ``n`` faults that healed.
    slowest: Number
    unhealed: int
    faults: tuple[FaultSeen, ...]


class Side(Frozen):
    """One of the two runs."""

    label: str
    folder: str
    started: str
    seconds: Rounded
    machine: str
    protections: dict[str, bool]
    #: The scenario's own measures, each with its limit and its samples.
    budget: tuple[Verdict, ...]
    requests: int
    #: Sent later than due, P99: the load generator's own lateness.
    lateness: Number
    wrong_routes: Share
    #: Requests that must be refused and were answered.
    wrongly_answered: Share
    memory: Memory
    departments: tuple[Department, ...]
    answers_per_s: Number
    switches: Number
    switches_per_1000: Number
    refusals: tuple[Refusal, ...]
    breaker_refusals: dict[str, int]
    breakers: tuple[Interval, ...]
    #: The time to the first token that each share of the answers stays below: 0, 1, … 100 %.
    ttft_curve: tuple[Rounded, ...]
    memory_over_time: Series
    answers_over_time: Series
    fragmentation: tuple[Series, ...]
    recovery: Recovery


class Cost(Frozen):
    """What protections cost: a run with them off over one with them on. Above 1: it costs."""

    protections: tuple[str, ...]
    #: Folder of the run with them off.
    without: str
    ttft_p50: Number
    ttft_p99: Number
    throughput: Number
    memory_peak: Number


class Sizing(Frozen):
    """How many servers hold the goal, by the simulator. ``n``: requests simulated."""

    label: str
    order: str
    #: None: not even ``most`` do.
    instances: int | None
    p99: Rounded | None
    worst_department: str
    n: int
    cost_per_month: Rounded | None
    #: One server with the trace as it was, simulated and measured.
    simulated_p50: Number
    measured_p50: Number


class Plan(Frozen):
    """The goal, the price, and what the simulation takes for granted."""

    goal_s: Rounded
    rate: Rounded
    price_per_hour: Rounded | None
    most: int
    assumptions: tuple[str, ...]
    sides: tuple[Sizing, ...]


class Headline(Frozen):
    """A figure of both sides beside the one of the case this was built for."""

    title: str
    unit: Literal["%", "s", "bytes", "instances", "money"]
    values: tuple[Number, ...]
    #: What the case reported, before and after; empty where it did not.
    case: tuple[str, str]
    #: What is counted, in a sentence.
    meaning: str


class Report(Frozen):
    """Everything on the page."""

    format: Literal[1] = 1
    scenario: str
    trace: str
    sides: tuple[Side, ...]
    headlines: tuple[Headline, ...]
    costs: tuple[Cost, ...]
    plan: Plan
    remarks: tuple[str, ...]
