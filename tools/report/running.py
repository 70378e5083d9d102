"""``tools report --run``: the runs, one after the other, each with a server of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtests.configurations import CONFIGURATIONS, PROTECTED, UNPROTECTED
from loadtests.runner import run_scenario
from loadtests.scenario import Options, Size
from tools.report.reading import ReportProblem


def sizes(texts: Sequence[str]) -> dict[str, float]:
    """``seconds=60`` and the like.

    Raises:
        ReportProblem: one of them is something else.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ReportProblem(f"--size {text}: must be NAME=NUMBER") from None
        if name not in Size.model_fields:
            known = ", ".join(Size.model_fields)
            raise ReportProblem(f"--size {text}: no such size; {known}")
    return found


def both(name: str, options: Options, out: Path, each: bool) -> tuple[Path, Path, list[Path]]:
    """Runs a scenario without and with our protections, and ``each`` time without one of them.

    Returns:
        The results folders, below ``out``: without all, with all, without one each.

    Raises:
        LoadProblem: bad input; nothing was compared.
        ReportProblem: a server or locust did not start or end.
    """
    singles = [one for one in CONFIGURATIONS if one not in (PROTECTED, UNPROTECTED)]
    folders = {}
    for configuration in (UNPROTECTED, PROTECTED, *(singles if each else ())):
        chosen = options.model_copy(update={"configuration": configuration})
        try:
            folders[configuration] = run_scenario(name, chosen, out / configuration)
        except RuntimeError as problem:
            raise ReportProblem(f"{configuration}: {problem}") from None
    return (
        folders[UNPROTECTED],
        folders[PROTECTED],
        [folders[one] for one in singles if one in folders],
    )
