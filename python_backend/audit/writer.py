"""Writes one process's audit: lines in order, synced, rotated, with a checkpoint beside them."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_backend import runtime
from python_backend.access_settings import AuditSettings
from python_backend.audit import chain, retention
from python_backend.audit.chain import FILE_SUFFIX, GENESIS, HEAD_SUFFIX, Head, HeadState

log = logging.getLogger(__name__)

#: Seconds between two checkpoints where not every line has its own.
CHECKPOINT_S = 1.0


class AuditError(Exception):
    """A line could not be written; the text names the file and the system's reason."""


class Writer:
    """One process's audit. Thread-safe.

    A line is handed to the system before ``write`` returns, so a killed process loses none. What
    the machine loses with its power depends on ``settings.sync``. ``close`` ends the file in order.

    Args:
        folder: the audit folder, made if missing.
        name: who writes, such as ``lora_gate``; file names begin with it.
        key: the audit key.
        clock: the wall clock, seconds.

    Raises:
        AuditError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        key: bytes,
        settings: AuditSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._name, self._key, self._settings = folder, name, key, settings
        self._clock = clock
        begun = time.strftime("%Y%m%dT%H%M%S", time.gmtime(clock()))
        self._stem = f"{name}-{begun}-{os.getpid()}-{secrets.token_hex(2)}"
        self._start = runtime.process_start(os.getpid()) or ""
        self._lock = threading.Lock()
        self._number, self._seq, self._mac = 0, 0, GENESIS
        self._fd = self._head_fd = -1
        self._size = self._checked_seq = 0
        self._damaged = False
        self._path = folder
        try:
            self._next_file()
        except OSError as error:
            raise AuditError(f"{folder}: {error.strerror}") from None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="audit", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The file that is written to now."""
        return self._path

    def write(self, record: dict[str, Any]) -> None:
        """Appends ``record``; ``seq`` and ``at`` (wall clock, seconds) are put before its keys.

        Raises:
            AuditError: it could not be written; the file is as it was.
        """
        with self._lock:
            try:
                if self._size >= self._settings.max_bytes:
                    self._next_file()
                self._append(record)
                if self._settings.sync == "line":
                    os.fdatasync(self._fd)
                    self._checkpoint("open")
            except OSError as error:
                raise AuditError(f"{self._path}: {error.strerror}") from None

    def _append(self, record: dict[str, Any]) -> None:
        if self._fd < 0:
            raise OSError(0, "the audit is closed")
        seq = self._seq + 1
        numbered = {"seq": seq, "at": round(self._clock(), 3), **record}
        line, mac = chain.seal(numbered, self._mac, self._key)
        if self._damaged:
            os.ftruncate(self._fd, self._size)
            self._damaged = False
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(0, "no space left for a whole line")
        except OSError:
            # Part of the line may be there; the next one must not begin in its middle.
            self._damaged = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
                self._damaged = False
            raise
        self._size += len(line)
        self._seq, self._mac = seq, mac

    def _next_file(self) -> None:
        """Opens the next file, then closes the one before; either it is all done or nothing."""
        old = (self._fd, self._head_fd, self._size, self._path, self._seq, self._mac)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = retention.heads(self._folder, self._key)
        path = self._folder / f"{self._stem}-{self._number + 1:04}{FILE_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        fd = head_fd = -1
        try:
            fd = os.open(path, flags, 0o600)
            head_fd = os.open(path.with_suffix(HEAD_SUFFIX), flags & ~os.O_APPEND, 0o600)
            self._fd, self._head_fd, self._size, self._path = fd, head_fd, 0, path
            self._append(
                {
                    "event": "open",
                    "file": path.name,
                    "previous": old[3].name if old[0] >= 0 else "",
                    "previous_mac": old[5].hex(),
                    "pid": os.getpid(),
                    "files": {h.file: [h.seq, h.mac] for h in present if h.state != "removed"},
                }
            )
            self._checkpoint("open")
        except BaseException:
            self._fd, self._head_fd, self._size, self._path, self._seq, self._mac = old
            for opened, leaf in ((fd, path), (head_fd, path.with_suffix(HEAD_SUFFIX))):
                if opened >= 0:
                    os.close(opened)
                    leaf.unlink(missing_ok=True)
            raise
        self._number += 1
        if old[0] >= 0:
            self._end(*old)
        retention.prune(self._folder, self._name, self._key, self._settings.keep)

    def _end(self, fd: int, head_fd: int, size: int, path: Path, seq: int, mac: bytes) -> None:
        """The last checkpoint of a file, and its end."""
        with contextlib.suppress(OSError):
            if self._settings.sync != "none":
                os.fdatasync(fd)
            self._write_head(head_fd, path.name, seq, mac, size, "closed")
        os.close(fd)
        os.close(head_fd)

    def _write_head(
        self, fd: int, file: str, seq: int, mac: bytes, size: int, state: HeadState
    ) -> None:
        sync, pid = self._settings.sync, os.getpid()
        head = Head(file, seq, mac.hex(), size, state, sync, pid, self._start)
        os.pwrite(fd, head.seal(self._key), 0)

    def _checkpoint(self, state: HeadState) -> None:
        self._write_head(self._head_fd, self._path.name, self._seq, self._mac, self._size, state)
        self._checked_seq = self._seq

    def _tick(self) -> None:
        """Checkpoints: what they vouch for is on the disk first, unless nothing is ever synced."""
        while not self._closed.wait(CHECKPOINT_S):
            try:
                self.checkpoint()
            except OSError as error:
                log.error("%s: no checkpoint: %s", self._path, error.strerror)

    def checkpoint(self) -> None:
        """A checkpoint now, if there are new lines. Raises ``OSError``."""
        with self._lock:
            if self._fd < 0:
                return
            if not self._path.exists():
                log.error("%s has been removed while it was written to", self._path)
                self._next_file()
            if self._checked_seq == self._seq:
                return
            fd = os.dup(self._fd)
            state = (self._head_fd, self._path.name, self._seq, self._mac, self._size)
        try:
            if self._settings.sync == "interval":
                os.fdatasync(fd)  # without the lock: nobody waits for the disk
        finally:
            os.close(fd)
        with self._lock:
            if state[0] == self._head_fd and state[1] == self._path.name:
                self._write_head(*state, "open")
                self._checked_seq = state[2]

    def close(self) -> None:
        """Ends the file. Callable more than once."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            if self._fd >= 0:
                self._end(self._fd, self._head_fd, self._size, self._path, self._seq, self._mac)
                self._fd = self._head_fd = -1


def open_writer(folder: Path, name: str, settings: AuditSettings) -> Writer | None:
    """The audit of the model ``name`` in ``folder``, with the key there; None if switched off.

    Raises:
        AuditError, RuntimeDirError: the folder cannot be written, or its key is not ours.
    """
    if not settings.enabled:
        return None
    return Writer(folder, name, runtime.shared_key(folder / chain.KEY_FILE), settings)
