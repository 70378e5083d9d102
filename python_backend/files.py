"""Small files: replaced whole, watched for changes, or mapped by two processes."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    """Replaces the file at ``path``, by default for its owner only; synced before it is seen.

    Raises:
        OSError: the folder cannot be written; the old file is still whole.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


#: Inode, time of the last change in nanoseconds, size in bytes.
Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """What changes when the file at ``path`` does; None where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def mapped(path: Path, size: int) -> mmap.mmap:
    """The first ``size`` bytes of the file at ``path``, shared; the file is made if need be.

    Raises:
        OSError: it cannot be made or opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(handle, size)
        return mmap.mmap(handle, size)
    finally:
        os.close(handle)
