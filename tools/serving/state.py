"""The state directory of a server: one server at a time, its admin key, the name of its memory."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import IO

from tools.serving import shm
from tools.serving.problem import ServeProblem
from tools.serving.process import all_pids

#: In ``run/``: the process id of tritonserver.
PID_FILE = "server.pid"


class StateDirectory:
    """Claims ``path`` for this process until it ends.

    Args:
        path: made when it is not there.

    Raises:
        ServeProblem: another server uses it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run = self.path / "run"
        self.log = self.path / "logs" / "tritonserver.log"
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.run.mkdir(mode=0o700, exist_ok=True)
            self._lock: IO[str] = (self.run / "serve.lock").open("a+")
        except OSError as error:
            raise ServeProblem(
                f"--state-dir {path}: {error.strerror} ({error.filename}); name a folder that "
                "can be written"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServeProblem(
                f"another server already uses {self.path}; stop it or give another --state-dir"
            ) from error

    def new_admin_key(self) -> str:
        """A fresh key for the restricted APIs, also written to ``run/triton-admin.key`` (0600)."""
        key = secrets.token_urlsafe(32)
        self._write("triton-admin.key", key)
        return key

    def new_shm_prefix(self) -> str:
        """A name no other server uses; what a killed server of this directory left is removed."""
        record = self.run / "shm-prefix"
        if record.exists():
            left = shm.with_prefix(record.read_text().strip())
            shm.remove(left, in_use=shm.mapped_by(all_pids()) if left else ())
        prefix = f"lora_serving_{os.getpid()}_{secrets.token_hex(4)}_"
        self._write("shm-prefix", prefix)
        return prefix

    def note_server(self, pid: int) -> None:
        """Leaves the process id of tritonserver in ``run/server.pid``, for ``tools health``."""
        self._write(PID_FILE, str(pid))

    def hold(self, pid: int) -> None:
        """For a process about to become tritonserver: the claim outlives the program it runs."""
        self.note_server(pid)
        os.set_inheritable(self._lock.fileno(), True)

    def let_go(self) -> None:
        """For a child of the process that claimed it: the claim is not the child's to prolong."""
        self._lock.close()

    def _write(self, name: str, text: str) -> None:
        half = self.run / f"{name}.new"
        half.unlink(missing_ok=True)
        descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        half.replace(self.run / name)
