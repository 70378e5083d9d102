"""A report out of results folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.report.costs import costs, missing
from tools.report.figures import Report
from tools.report.headlines import headlines
from tools.report.reading import Loaded, comparable, load
from tools.report.side import side
from tools.report.sizing import Wish, plan

#: A simulator further off than this is not to be believed.
_OFF = 2.0


def build(first: Path, second: Path, without: Sequence[Path], wish: Wish) -> Report:
    """Both runs beside each other.

    Args:
        first: before; a run with protections off.
        second: after; the run with all of them on.
        without: runs of the same trace that each lack some of the second's protections.

    Raises:
        ReportProblem: a folder cannot be used, or the runs cannot be compared.
    """
    before, after = load(first), load(second)
    remarks = list(comparable(before, after))
    same = before.run.configuration == after.run.configuration
    sides = (side(before, _label(before, same)), side(after, _label(after, same)))
    others = []
    for folder in without:
        other = load(folder)
        remarks += comparable(after, other)
        others.append(side(other, other.run.configuration))
        if not missing(sides[1], others[-1]):
            remarks.append(f"{other.folder.name} has every protection on: it tells no cost.")
    for one in sides:
        if missed := [line.name for line in one.budget if not line.ok]:
            remarks.append(f"{one.label} missed its budget: {', '.join(missed)}.")
    if not missing(sides[1], sides[0]):
        remarks.append("Both runs have the same protections on.")
    sizes = plan(after, sides, wish)
    for size in sizes.sides:
        measured, simulated = size.measured_p50.value, size.simulated_p50.value
        if measured and simulated and not 1 / _OFF < simulated / measured < _OFF:
            remarks.append(
                f"The simulator says {simulated:.2g} s where {size.label} had a median of "
                f"{measured:.2g} s: what it says of instances and their cost is a guess."
            )
    return Report(
        scenario=after.run.scenario,
        trace=after.run.trace,
        sides=sides,
        headlines=headlines(sides, sizes),
        costs=costs(sides[1], [sides[0], *others]),
        plan=sizes,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _label(loaded: Loaded, ambiguous: bool) -> str:
    name = loaded.run.configuration
    return f"{name} ({loaded.folder.name})" if ambiguous else name
