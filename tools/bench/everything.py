"""``tools bench all``: every scenario in turn, each in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools import layout
from tools.bench import plot

#: Exit code of a scenario that ran and missed a promise.
_MISSED = 1


@dataclasses.dataclass(frozen=True)
class Ran:
    """One scenario's outcome: what it printed as JSON, or why there is none."""

    name: str
    seconds: float
    body: dict[str, Any] | None
    error: str = ""

    @property
    def missed(self) -> int:
        """Promises that were not kept."""
        marks = [] if self.body is None else [mark for *_, mark in plot.promises(self.body)]
        return marks.count("MISSED")

    @property
    def verdict(self) -> str:
        """One word or two, for a table."""
        if self.body is None:
            return f"failed: {self.error}"
        return f"{self.missed} missed" if self.missed else "ok"


def run_one(name: str, arguments: Sequence[str], limit_s: float) -> Ran:
    """Runs ``tools bench <name> --json``; after ``limit_s`` seconds it is stopped."""
    command = [sys.executable, "-m", "tools", "bench", name, "--json", *arguments]
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=layout.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaints = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Ran(name, time.monotonic() - began, None, f"not done after {limit_s:.0f} s")
    finally:
        _end(process)
    took = time.monotonic() - began
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if process.returncode not in (0, _MISSED) or not lines:
        last = complaints.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return Ran(name, took, None, last[0][:200])
    return Ran(name, took, json.loads(lines[-1]))


def _end(process: subprocess.Popen[str]) -> None:
    """Stops it with all that it has started, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_all(
    names: Sequence[str],
    run: Callable[[str], Ran],
    out: Path,
    tell: Callable[[str], None],
) -> list[Ran]:
    """Every scenario, whatever becomes of the one before; files and pages go to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for number, name in enumerate(names, 1):
        tell(f"{number} of {len(names)}: {name}")
        ran = run(name)
        found.append(ran)
        if ran.body is not None:
            (out / f"{name}.json").write_text(json.dumps(ran.body, indent=1) + "\n", "utf-8")
            plot.write(name, ran.body, out)
        tell(f"  {ran.verdict}, {ran.seconds:.0f} s")
    return found
