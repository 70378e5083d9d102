"""Progress of set-up: numbered steps, and commands whose output goes to a log."""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.install.problem import SetupProblem

#: Lines of pip worth showing while it works.
_NEWS = re.compile(r"^\s*(Collecting|Downloading|Installing|Building|Using cached|Processing) ")
#: Lines of pip that say why.
_REASON = re.compile(r"error|no matching|could not|denied|no space|conflict", re.IGNORECASE)


def _end_with_parent() -> None:
    # A pip that outlived a killed set-up would go on writing into what the next one clears.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


class CommandFailed(Exception):
    """A command ended with a code other than 0; ``lines`` are its last."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines

    def says(self, pattern: str) -> bool:
        """Whether a line of the output matches."""
        return any(re.search(pattern, line) for line in self.lines)

    def reason(self) -> str:
        """The lines that say why, at most five; the last ones when none does."""
        chosen = [line for line in self.lines if _REASON.search(line)] or self.lines
        return "\n  ".join(line.strip()[:200] for line in chosen[-5:]) or "it said nothing"


class Steps:
    """Shows ``[i/n] what … seconds`` and runs commands.

    Args:
        total: number of steps.
        log: where the output of commands is appended.
    """

    def __init__(self, total: int, log: Path) -> None:
        self._total = total
        self._number = 0
        self._log = log
        self._label = ""
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        log.parent.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """One step: shown while it runs, with its time in seconds when it ends."""
        self._number += 1
        self._label = f"[{self._number}/{self._total}] {what}"
        self._began = time.monotonic()
        if not self._live:
            print(f"{self._label} …", flush=True)
        self._show("")
        yield
        done = f"{self._label}: done in {time.monotonic() - self._began:.1f} s"
        print(f"\r\033[K{done}" if self._live else done, flush=True)

    def note(self, text: str) -> None:
        """A remark the reader should keep."""
        print(f"{chr(13)}\033[K{text}" if self._live else text, flush=True)

    def run(self, command: Sequence[str]) -> None:
        """Run a command, its output in the log.

        Raises:
            CommandFailed: it ended with a code other than 0.
        """
        last: deque[str] = deque(maxlen=400)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            with subprocess.Popen(  # noqa: S603
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=_end_with_parent,
            ) as process:
                for line in process.stdout or ():
                    log.write(line)
                    last.append(line.rstrip())
                    if _NEWS.match(line):
                        self._show(line.strip())
        if process.returncode != 0:
            raise CommandFailed(list(last))

    def failed(self, what: str, error: CommandFailed, cure: str) -> SetupProblem:
        """The problem to raise for a failed command."""
        return SetupProblem(what, error.reason(), f"{cure}; the whole log: {self._log}")

    def _show(self, news: str) -> None:
        if self._live:
            text = f"{self._label} … {time.monotonic() - self._began:3.0f} s  {news}"
            print(f"\r\033[K{text[:110]}", end="", flush=True)
