"""Copies of staged adapters in shared memory, from which the engine reads faster than from a disk.

A server has a folder of its own there, locked for as long as it lives: the next one removes what a
killed one has left, and nothing else. Blocking: for worker threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

from python_backend.adapters.peft_config import CONFIG_FILE
from python_backend.adapters.weights import WEIGHTS_FILE

log = logging.getLogger(__name__)

ROOT = Path("/dev/shm")  # noqa: S108 - ours by lock and owner, mode 0700
PREFIX = "lora-tier-"
_LOCK = "lock"
_FILES = (CONFIG_FILE, WEIGHTS_FILE)
_PAGE = os.sysconf("SC_PAGESIZE")


def copy_bytes(staged: Path) -> int:
    """Bytes of memory that a copy of a staged adapter takes: files lie in whole pages.

    Raises:
        OSError: it is not there.
    """
    return sum(-(-(staged / name).stat().st_size // _PAGE) * _PAGE for name in _FILES)


def _taken(copy: Path, size: int) -> tuple[int, int]:
    """(bytes taken, bytes of them that hold nothing) of a copy; at least ``size`` are taken.

    Where the file system uses large pages, it is more.
    """
    stats = [(copy / name).stat() for name in _FILES]
    taken = max(size, sum(stat.st_blocks * 512 for stat in stats))
    return taken, taken - sum(stat.st_size for stat in stats)


class ShmTier:
    """The folder and what lies in it. One thread at a time.

    Args:
        root: a memory file system.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._folder: Path | None = None
        self._lock = -1
        self._held: dict[int, int] = {}
        self._empty: dict[int, int] = {}

    def open(self) -> None:
        """Removes what killed servers have left, and makes the folder.

        Raises:
            OSError: it cannot be made.
        """
        for left in self._root.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_left(left)
        # Never by a pid alone: containers that share the folder may have the same.
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=self._root))
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._folder = folder

    @property
    def held(self) -> dict[int, int]:
        """Bytes of memory by the id of each version that has a copy."""
        return dict(self._held)

    @property
    def empty(self) -> dict[int, int]:
        """How many of ``held`` hold nothing: the ends of last pages."""
        return dict(self._empty)

    def path(self, int_id: int) -> Path | None:
        """The folder of a version's copy, if it has one."""
        return self._folder / str(int_id) if self._folder and int_id in self._held else None

    def put(self, int_id: int, staged: Path) -> bool:
        """Copies a staged adapter; False, with nothing left, where that cannot be done."""
        if self._folder is None:
            return False
        final = self._folder / str(int_id)
        temporary = self._folder / f".{int_id}"
        try:
            size = copy_bytes(staged)
            free = os.statvfs(self._folder)
            if free.f_bavail * free.f_frsize < size:
                # Memory that is not there kills whoever writes to it: Triton lives here too.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            temporary.mkdir(mode=0o700)
            for name in _FILES:
                shutil.copyfile(staged / name, temporary / name)
            size, empty = _taken(temporary, size)
            temporary.rename(final)
        except OSError as error:
            log.warning("no copy in shared memory: %s", error.strerror)
            shutil.rmtree(temporary, ignore_errors=True)
            return False
        self._held[int_id], self._empty[int_id] = size, empty
        return True

    def drop(self, int_id: int) -> None:
        """Removes a copy; who reads it meanwhile reads the original."""
        if self._folder is not None and self._held.pop(int_id, None) is not None:
            self._empty.pop(int_id, None)
            shutil.rmtree(self._folder / str(int_id), ignore_errors=True)

    def close(self) -> None:
        """Removes everything. Callable more than once."""
        folder, self._folder = self._folder, None
        self._held.clear()
        self._empty.clear()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(self._lock)


def _remove_if_left(folder: Path) -> None:
    """Removes a folder of ours that nobody holds the lock of."""
    stat = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or stat.st_uid != os.getuid():
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
