"""The results folders that a report is made of, read and compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from loadtests import results


class ReportProblem(Exception):
    """The report cannot be made; the text names the file and the cure."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """One run, read whole."""

    folder: Path
    run: results.Run
    requests: tuple[results.Request, ...]
    samples: tuple[results.Sample, ...]
    faults: tuple[results.Fault, ...]


def load(folder: Path) -> Loaded:
    """A results folder.

    Raises:
        ReportProblem: it is missing, not that of a finished run, or a line of it is damaged.
    """
    if not folder.is_dir():
        raise ReportProblem(f"{folder}: no such folder; name the results folder of a run")
    try:
        run = results.read_run(folder)
        for name in (results.REQUESTS, results.SAMPLES, results.FAULTS):
            _whole(folder / name)
        loaded = Loaded(
            folder,
            run,
            tuple(results.requests(folder)),
            tuple(results.samples(folder)),
            tuple(results.faults(folder)),
        )
    except results.ResultsProblem as problem:
        raise ReportProblem(str(problem)) from None
    if not loaded.requests:
        raise ReportProblem(f"{folder / results.REQUESTS}: no requests; was this run broken off?")
    return loaded


def _whole(path: Path) -> None:
    """A last line without its end was cut off: what it said would silently be missing."""
    if not path.exists():
        return
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        line = text.count(b"\n") + 1
        raise ReportProblem(f"{path}:{line}: the line is cut off; copy the folder again")


def comparable(first: Loaded, second: Loaded) -> tuple[str, ...]:
    """Checks that two runs may stand beside each other; remarks on what still differs.

    Raises:
        ReportProblem: they had other arrivals: no figure of theirs can be compared.
    """
    if first.run.trace != second.run.trace:
        raise ReportProblem(
            f"{first.folder} and {second.folder} had other traces ({first.run.trace[:12]} and "
            f"{second.run.trace[:12]}): run both with the same scenario, options and seed"
        )
    remarks = []
    if first.run.machine != second.run.machine:
        remarks.append("The two ran on different machines: times and memory do not compare.")
    if differing := _differing(first.run.versions, second.run.versions):
        remarks.append(f"Versions differ: {', '.join(differing)}.")
    if abs(first.run.seconds - second.run.seconds) > 0.1 * first.run.seconds:
        remarks.append("One ran at least a tenth longer than the other.")
    for loaded in (first, second):
        if not loaded.samples:
            remarks.append(f"{loaded.folder.name} has no samples: no memory, switches, breakers.")
    return tuple(remarks)


def _differing(first: dict[str, str], second: dict[str, str]) -> list[str]:
    return sorted(name for name in first | second if first.get(name) != second.get(name))
