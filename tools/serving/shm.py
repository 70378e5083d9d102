"""Shared memory of the server: what of /dev/shm is ours, and how it goes away.

The Python backend removes its regions when it ends in order; after a kill they would stay until
the machine restarts. Only what belongs to processes we started is ever removed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory


def mapped_by(pids: Iterable[int], shm: Path = SHM, proc: Path = Path("/proc")) -> set[Path]:
    """The regions these processes have mapped.

    Regions lie directly in ``shm``; what lies deeper is somebody's folder, a checkout perhaps.
    """
    found: set[Path] = set()
    pattern = re.compile(rf"\s({re.escape(str(shm))}/[^/\s]+)(?: \(deleted\))?$", re.MULTILINE)
    for pid in pids:
        with contextlib.suppress(OSError):
            maps = (proc / str(pid) / "maps").read_text(errors="replace")
            found.update(Path(path) for path in pattern.findall(maps))
    return found


def everything(shm: Path = SHM) -> set[Path]:
    """All that lies there now; taken before a start, it is what the server cannot have made."""
    return set(shm.iterdir()) if shm.is_dir() else set()


def with_prefix(prefix: str, shm: Path = SHM) -> set[Path]:
    """The regions of the server that was given ``prefix``; none for an empty prefix."""
    return {path for path in shm.glob("*") if prefix and path.name.startswith(prefix)}


def remove(paths: Iterable[Path], in_use: Iterable[Path] = ()) -> list[Path]:
    """Remove those of ``paths`` that still exist and nobody uses; says which went."""
    gone = []
    for path in sorted(set(paths) - set(in_use)):
        with contextlib.suppress(OSError):
            path.unlink()
            gone.append(path)
    return gone
