"""What protections cost, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tools.report import folders
from tests.unit.tools.report.folders import UNPROTECTED, looks, request
from tools.report.build import build
from tools.report.costs import costs
from tools.report.order import FAIR_QUEUE
from tools.report.reading import ReportProblem, load
from tools.report.side import side
from tools.report.sizing import Wish


def test_each_run_without_some_is_a_row(tmp_path: Path) -> None:
    # The memory: 1.5 GiB with, 1.0 without; the first token after 0.3 s with, 0.2 without.
    with_all = folders.write(
        tmp_path / "all",
        [request(t, ttft=0.3, tokens=8) for t in range(4)],
        looks((0, 1.0, {}), (9, 1.0, {})),
    )
    quicker = [request(t, ttft=0.2, tokens=10) for t in range(4)]
    no_access = folders.write(
        tmp_path / "no-access",
        quicker,
        looks((0, 0.5, {})),
        protections={**folders.PROTECTIONS, "access": False},
    )
    nothing = folders.write(tmp_path / "nothing", quicker, **UNPROTECTED)
    base, *others = (side(load(f), f.name) for f in (with_all, nothing, no_access))
    one, all_three = costs(base, others)
    assert (one.protections, one.without) == (("access",), "no-access")
    assert (one.ttft_p50.value, one.ttft_p50.n) == (pytest.approx(1.5), 4)
    assert one.throughput.value == pytest.approx(1.25)
    assert (one.memory_peak.value, one.memory_peak.n) == (1.5, 1)
    assert all_three.protections == ("access", "breakers", FAIR_QUEUE)
    assert (all_three.memory_peak.value, all_three.memory_peak.n) == (None, 0)


def test_the_sides_the_wrong_way_round(tmp_path: Path) -> None:
    on = folders.write(tmp_path / "on", [request(0)])
    off = folders.write(tmp_path / "off", [request(0)], **UNPROTECTED)
    with pytest.raises(
        ReportProblem,
        match=r"on has access, breakers, fair queue .* on and off has",
    ):
        build(on, off, (), Wish())


def test_the_same_protections_are_remarked_on(tmp_path: Path) -> None:
    first, second = (folders.write(tmp_path / n, [request(0), request(1)]) for n in ("a", "b"))
    made = build(first, second, (), Wish(goal_s=60))
    assert made.costs == ()
    assert "Both runs have the same protections on." in made.remarks
    assert [one.label for one in made.sides] == ["protected (a)", "protected (b)"]


def test_headlines_stand_beside_the_case(tmp_path: Path) -> None:
    wrong = [request(t, route="wrong" if t == 0 else "right", ttft=1.2) for t in range(8)]
    off = folders.write(tmp_path / "off", wrong, **UNPROTECTED)
    on = folders.write(tmp_path / "on", [request(t) for t in range(8)])
    made = build(off, on, (), Wish(goal_s=60, price_per_hour=1.5))
    rows = {line.title: line for line in made.headlines}
    routes = rows["Wrong routes"]
    assert [(v.value, v.n) for v in routes.values] == [(0.125, 8), (0.0, 8)]
    assert routes.case == ("3.2 %", "0.7 %")
    p99 = rows["P99, first token: fin"]
    assert [v.value for v in p99.values] == [1.2, 0.25]
    assert p99.case == ("1200 ms", "420 ms")
    assert rows["Memory, peak"].case == ("148 GB", "82 GB")
    assert rows["Available memory lost to ten adapters"].case[0] == "40 %"
    assert rows["Memory taken by three adapters"].case[1] == "3.92 %"
    assert [v.value for v in rows["Instances"].values] == [1, 1]
    assert [v.value for v in rows["Cost a month"].values] == [1095, 1095]
