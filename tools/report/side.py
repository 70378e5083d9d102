"""One run as the figures of its side of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadtests.results import Request
from python_backend import lora_metrics
from tools.report import watched
from tools.report.figures import Department, Number, Refusal, Series, Side
from tools.report.reading import Loaded
from tools.report.recovery import recovery
from tools.report.statistics import POINTS, curve, quantiles, share, thinned

ALL = "all"
#: Ends that are no refusals: an answer, and what the caller wanted.
_WANTED = {"ok", "cancelled"}


def side(loaded: Loaded, label: str) -> Side:
    """All figures of one run."""
    run, requests = loaded.run, loaded.requests
    looks = watched.pages(loaded.samples)
    times = [sample.t for sample in loaded.samples]
    good = [request for request in requests if request.kind == "good"]
    answered = [request for request in good if request.outcome == "ok"]
    checked = [request for request in requests if request.route != "unchecked"]
    barred = [request for request in requests if request.kind in ("forbidden", "malformed")]
    switches = watched.counted(looks, lora_metrics.SWITCHES)
    per_1000 = None if switches.value is None else 1000 * switches.value / len(requests)
    return Side(
        label=label,
        folder=loaded.folder.name,
        started=run.started,
        seconds=run.seconds,
        machine=_machine(loaded),
        protections=run.protections,
        budget=run.budget,
        requests=len(requests),
        lateness=Number(value=quantiles(r.sent - r.t for r in requests).p99, n=len(requests)),
        wrong_routes=share(sum(r.route == "wrong" for r in checked), len(checked)),
        wrongly_answered=share(sum(r.outcome == "ok" for r in barred), len(barred)),
        memory=watched.memory(loaded),
        departments=tuple(departments(good, run.seconds)),
        answers_per_s=Number(value=len(answered) / run.seconds, n=len(answered)),
        switches=switches,
        switches_per_1000=Number(value=per_1000, n=len(requests)),
        refusals=tuple(refusals(requests)),
        breaker_refusals=watched.counted_by(looks, lora_metrics.BREAKER_REFUSALS, "signal"),
        breakers=watched.breakers(looks, times, run.seconds),
        ttft_curve=curve(waits(answered)),
        memory_over_time=watched.memory_over_time(loaded.samples),
        answers_over_time=answers_over_time(answered, run.seconds),
        fragmentation=watched.fragmentation(looks, times),
        recovery=recovery(loaded),
    )


def waits(answered: Sequence[Request]) -> list[float]:
    """From when each was due to its first token, of those that stream."""
    return [r.sent - r.t + r.ttft for r in answered if r.ttft is not None]


def departments(good: Sequence[Request], seconds: float) -> list[Department]:
    """All together, then each by name."""
    names = sorted({request.department for request in good})
    found = [_department(ALL, good, seconds)]
    for name in names:
        found.append(_department(name, [r for r in good if r.department == name], seconds))
    return found


def _department(name: str, good: Sequence[Request], seconds: float) -> Department:
    answered = [request for request in good if request.outcome == "ok"]
    tokens = sum(request.tokens for request in answered)
    return Department(
        name=name,
        ttft=quantiles(waits(answered)),
        total=quantiles(r.sent - r.t + r.total for r in answered),
        answered=share(len(answered), len(good)),
        tokens_per_s=Number(value=tokens / seconds, n=len(answered)),
    )


def refusals(requests: Sequence[Request]) -> list[Refusal]:
    """Requests that ended without an answer, by kind and reason, the most first."""
    ends = Counter((r.kind, r.outcome) for r in requests if r.outcome not in _WANTED)
    ordered = sorted(ends.items(), key=lambda item: (-item[1], item[0]))
    return [Refusal(kind=kind, reason=reason, count=n) for (kind, reason), n in ordered]


def answers_over_time(answered: Sequence[Request], seconds: float) -> Series:
    """Good answers a second, by when they ended, in steps of a second or more."""
    step = max(1.0, 2 * seconds / POINTS)
    ends = Counter(int((r.sent + r.total) / step) for r in answered)
    last = max([*ends, int(seconds / step)])
    return thinned("answers", [(i * step, ends[i] / step) for i in range(last + 1)])


def _machine(loaded: Loaded) -> str:
    machine = loaded.run.machine
    gpu = machine.gpu or "no GPU"
    return f"{machine.cpus} CPUs, {machine.memory_bytes / 2**30:.0f} GiB, {gpu}"
