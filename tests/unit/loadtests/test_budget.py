"""A budget says what it means, or that it has a typo."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.budget import DEFAULT, read_budget
from loadtests.measures import Seen
from loadtests.problem import LoadProblem
from loadtests.results import Verdict
from loadtests.scenarios import SCENARIOS
from tests.unit.loadtests.records import request

RUN = Seen((request(1.0, ttft=0.5), request(2.0, outcome="overloaded")), (), seconds=10.0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_limits(name: str) -> None:
    limits = read_budget(DEFAULT, name)
    assert limits.at_most["wrong_routes"] == 0


def test_limits_are_judged(tmp_path: Path) -> None:
    file = tmp_path / "budget.toml"
    file.write_text(
        "[zipf.at_most]\nerrors = 0.4\nttft_p50.mark = 0.5\nttft_p50.svc = 9\n"
        "[zipf.at_least]\nrequests = 2\n"
    )
    assert read_budget(file, "zipf").judge(RUN) == (
        Verdict(name="errors", measured=0.5, limit=0.4, ok=False, samples=2),
        Verdict(name="ttft_p50.mark", measured=0.5, limit=0.5, ok=True, samples=1),
        # Nothing was measured, so nothing was kept.
        Verdict(name="ttft_p50.svc", measured=None, limit=9, ok=False, samples=0),
        Verdict(name="requests (at least)", measured=2.0, limit=2, ok=True, samples=2),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[zipf.at_most]\nwrong_route = 0", "zipf.at_most: no such measure: wrong_route; did you "),
        ("[zipf.at_most]\nttft_p9.fin = 0", "no such measure: ttft_p9.fin; did you mean ttft_p9"),
        ("[zpif.at_most]\nerrors = 0", "zpif: no such scenario; did you mean zipf?"),
        ("[zipf.atmost]\nerrors = 0", "zipf.atmost: Extra inputs .* did you mean at_most?"),
        ("[zipf.at_most]\nerrors = 'no'", "zipf.at_most.errors: Input should be a valid number"),
        ("[zipf.at_most]\nerrors = nan", "zipf.at_most.errors: Input should be a finite number"),
        ("zipf = 3", "zipf: Input should be"),
        ("[zipf.at_most\n", "Expected"),
        ("[soak.at_most]\nerrors = 0", r"no section \[zipf.at_most\]"),
    ],
)
def test_a_typo_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "budget.toml"
    file.write_text(text)
    with pytest.raises(LoadProblem, match=said) as caught:
        read_budget(file, "zipf")
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_budget_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadProblem, match="No such file"):
        read_budget(tmp_path / "none.toml", "zipf")
