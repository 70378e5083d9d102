"""The figures a manager asks for first, beside those of the case this was built for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tools.report.figures import Headline, Number, Plan, Side

#: (title, unit, what is counted, the case before and after, the figure of a side).
_Row = tuple[str, str, str, tuple[str, str], Callable[[Side], Number]]


def _memory_after(adapters: int, of: str) -> Callable[[Side], Number]:
    def figure(side: Side) -> Number:
        for after in side.memory.after:
            if after.adapters == adapters:
                return Number(value=getattr(after, of), n=after.n)
        return Number(value=None, n=0)

    return figure


def _p99(of: str, name: str) -> Callable[[Side], Number]:
    def figure(side: Side) -> Number:
        for department in side.departments:
            if department.name == name:
                quantiles = getattr(department, of)
                return Number(value=quantiles.p99, n=quantiles.n)
        return Number(value=None, n=0)

    return figure


def _waits(sides: Sequence[Side]) -> list[_Row]:
    """A row for each department: all together would hide one behind another that sends more."""
    names = list(dict.fromkeys(d.name for side in sides for d in side.departments))
    if len(names) > 1 + _MOST_DEPARTMENTS:
        names = names[:1]
    elif len(names) > 1:
        names = names[1:]
    return [
        (
            f"P99, {title}: {name}",
            "s",
            f"From when a request was due to its {until} token; good requests that were answered.",
            ("1200 ms", "420 ms"),
            _p99(of, name),
        )
        for of, title, until in (
            ("ttft", "first token", "first"),
            ("total", "whole answer", "last"),
        )
        for name in names
    ]


#: With more departments their P99 stand in the table of waits alone.
_MOST_DEPARTMENTS = 4
_ROWS: tuple[_Row, ...] = (
    (
        "Wrong routes",
        "%",
        "Answers whose words or lora_served were another adapter's, of those that were checked.",
        ("3.2 %", "0.7 %"),
        lambda side: Number(value=side.wrong_routes.value, n=side.wrong_routes.n),
    ),
    (
        "Memory, peak",
        "bytes",
        "Resident memory of all processes of the server, largest sample; the case's is a GPU's.",
        ("148 GB", "82 GB"),
        lambda side: side.memory.peak,
    ),
    (
        "Available memory lost to ten adapters",
        "%",
        "Growth until ten different adapters had answered, over what the machine had left before.",
        ("40 %", ""),
        _memory_after(10, "of_available"),
    ),
    (
        "Memory taken by three adapters",
        "%",
        "Growth until three different adapters had answered, over what was resident before.",
        ("", "3.92 %"),
        _memory_after(3, "of_resident"),
    ),
    (
        "Availability",
        "%",
        "Seconds in which a good request was answered, of those in which one ended; with faults.",
        ("99.2 %", "99.9 %"),
        lambda side: Number(value=side.recovery.available.value, n=side.recovery.available.n),
    ),
    (
        "Recovery, slowest",
        "s",
        "From an injected fault to the first good answer after it.",
        ("15 min", "2 min"),
        lambda side: side.recovery.slowest,
    ),
)


def headlines(sides: Sequence[Side], plan: Plan) -> tuple[Headline, ...]:
    """All of them; those nobody measured too, so that it is seen that they are missing."""
    found = [
        _headline(title, unit, meaning, case, [figure(side) for side in sides])
        for title, unit, meaning, case, figure in (*_ROWS[:2], *_waits(sides), *_ROWS[2:])
    ]
    instances = [Number(value=one.instances, n=one.n) for one in plan.sides]
    text = (
        f"Servers that keep the worst department's P99 to the first token below {plan.goal_s:g} s "
        f"at {plan.rate:.3g} requests a second: simulated."
    )
    found.append(_headline("Instances", "instances", text, ("12", "8"), instances))
    if plan.price_per_hour is not None:
        costs = [Number(value=one.cost_per_month, n=one.n) for one in plan.sides]
        text = f"The instances at {plan.price_per_hour:g} an hour, 730 hours."
        found.append(_headline("Cost a month", "money", text, ("18,000", "12,500"), costs))
    return tuple(found)


def _headline(
    title: str, unit: str, meaning: str, case: tuple[str, str], values: Sequence[Number]
) -> Headline:
    return Headline.model_validate(
        {"title": title, "unit": unit, "values": values, "case": case, "meaning": meaning}
    )
