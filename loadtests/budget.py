"""``budget.toml``: for each scenario, what must not be exceeded and what must be reached."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from loadtests.measures import MEASURES, Seen, measured
from loadtests.problem import LoadProblem
from loadtests.results import Verdict
from loadtests.scenarios import SCENARIOS

DEFAULT = Path(__file__).with_name("budget.toml")


class Limits(BaseModel):
    """The limits of one scenario, by measure."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    at_most: dict[str, float] = {}
    at_least: dict[str, float] = {}

    @field_validator("at_most", "at_least")
    @classmethod
    def _known(cls, limits: dict[str, float]) -> dict[str, float]:
        for name in limits:
            if name.partition(".")[0] not in MEASURES:
                raise ValueError(
                    f"no such measure: {name}{_hint(name.partition('.')[0], MEASURES)}"
                )
        return limits

    def judge(self, seen: Seen) -> tuple[Verdict, ...]:
        """Every limit against what was measured; what could not be measured is missed."""
        found = []
        for name, limit in self.at_most.items():
            value, samples = measured(seen, name)
            ok = value is not None and value <= limit
            found.append(_verdict(name, value, limit, ok, samples))
        for name, limit in self.at_least.items():
            value, samples = measured(seen, name)
            ok = value is not None and value >= limit
            found.append(_verdict(f"{name} (at least)", value, limit, ok, samples))
        return tuple(found)


def _verdict(name: str, value: float | None, limit: float, ok: bool, samples: int) -> Verdict:
    rounded = None if value is None else round(value, 6)
    return Verdict(name=name, measured=rounded, limit=limit, ok=ok, samples=samples)


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def read_budget(path: Path, scenario: str) -> Limits:
    """The limits of a scenario.

    Raises:
        LoadProblem: the file cannot be read, anything in it is wrong, of whatever scenario, or it
            says nothing of this one.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LoadProblem(f"{path}: {error}") from None
    found = {}
    for name, body in raw.items():
        if name not in SCENARIOS:
            raise LoadProblem(f"{path}: {name}: no such scenario{_hint(name, SCENARIOS)}")
        try:
            found[name] = Limits.model_validate(_flat(body))
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, (name, *problem["loc"])))
            hint = ""
            if problem["type"] == "extra_forbidden":
                hint = _hint(str(problem["loc"][-1]), Limits.model_fields)
            said = problem["msg"].removeprefix("Value error, ")
            raise LoadProblem(f"{path}: {place}: {said}{hint}") from None
    if scenario not in found:
        raise LoadProblem(f"{path}: no section [{scenario}.at_most]; give {scenario} limits")
    return found[scenario]


def _flat(body: object) -> object:
    """``ttft_p99.fin = 1`` is a table in a table to TOML; here it is one name."""
    if not isinstance(body, dict):
        return body
    return {
        kind: {
            key: value
            for name, given in limits.items()
            for key, value in (
                ((f"{name}.{part}", number) for part, number in given.items())
                if isinstance(given, dict)
                else ((name, given),)
            )
        }
        if isinstance(limits, dict)
        else limits
        for kind, limits in body.items()
    }
