"""The server's log: followed while it runs, filtered for the terminal."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

#: Errors of Triton (``E1130 …``) and of vLLM (``(EngineCore pid=1) ERROR …``).
_ERROR = re.compile(r"^E\d{4} |^(?:\([^)]*\) )?(?:ERROR|CRITICAL)\b")
#: What Triton calls an error on every machine without a GPU.
_HARMLESS = re.compile(r"CudaDriverHelper has not been initialized")
#: Triton announces each model it loads; the engine's is the long one.
_LOADING = re.compile(r'\bloading: "?(\w+)')
_LOADED = re.compile(r'successfully loaded \'?"?(\w+)')
_WARMING = re.compile(r"warming: (\d+ of \d+)")
#: Lines that say why a start failed, best first. Triton says a model's error as one quoted line.
_REASONS = (
    re.compile(r"\"(failed to load '\w+' version .*)\""),
    re.compile(r"^(error: .*)"),
    re.compile(r"^((?:E\d{4} |\w*(?:\.\w+)*(?:Error|Exception)\b.*: ).*)"),
)


def is_error(line: str) -> bool:
    """Whether a line is an error by its own account."""
    return bool(_ERROR.match(line)) and not _HARMLESS.search(line)


def loading(lines: list[str]) -> set[str]:
    """The models whose loading has begun and not ended, as these lines tell it."""
    begun = {found[1] for line in lines if (found := _LOADING.search(line))}
    return begun - {found[1] for line in lines if (found := _LOADED.search(line))}


def warming(lines: list[str]) -> str:
    """How far the engine is with reading adapters, such as ``120 of 800``; empty: it reads none."""
    found = [match[1] for line in lines if (match := _WARMING.search(line))]
    return found[-1] if found else ""


def reason(lines: list[str], limit: int = 5) -> list[str]:
    """The lines that say why the start failed; the last lines when none does."""
    for pattern in _REASONS:
        matches = (pattern.search(line) for line in lines if not _HARMLESS.search(line))
        found = [match[1].replace("\\n", "\n") for match in matches if match]
        if found:
            said = "\n".join(dict.fromkeys(found[-limit:]))
            return [line for line in said.splitlines() if line.strip()]
    return [line for line in lines if line.strip()][-limit:]


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log, however long it is."""
    try:
        with path.open(encoding="utf-8", errors="replace") as log:
            return [line.rstrip("\n") for line in deque(log, maxlen=count)]
    except OSError:
        return []


class Follower:
    """Reads what has been added to a log since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._half = ""

    def new_lines(self) -> list[str]:
        """Whole lines only; a line still being written comes with the next call."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._half = (self._half + data.decode("utf-8", "replace")).split("\n")
        return lines


def rotate(path: Path) -> None:
    """Keep the log of the run before beside the new one, as ``<name>.1``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(path.name + ".1"))
