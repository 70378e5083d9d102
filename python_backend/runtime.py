"""What the processes of one server share through the runtime directory: boot id and ticket key."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from pathlib import Path

from python_backend.ticket import KEY_BYTES

_KEY_FILE = "ticket.key"


class RuntimeDirError(Exception):
    """The runtime directory cannot be used; the text names the file and the cure."""


def process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, as text, or None if there is none.

    Together with the pid it names one process for good: pids are reused, start times are not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # The command name is in parentheses and may hold spaces: count from the last parenthesis.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def boot_id(server_pid: int | None = None) -> str:
    """A name for one life of one tritonserver, the same in each of its stub processes.

    A stub is a child of the server, so the parent's pid and start time, together with the host's
    boot id, say which server it belongs to without anybody having to hand it over.
    """
    pid = os.getppid() if server_pid is None else server_pid
    host = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return hashlib.sha256(f"{host}:{pid}:{process_start(pid)}".encode()).hexdigest()[:32]


def ticket_key(run_dir: Path) -> bytes:
    """The server's ticket key, made by whichever process comes first. Raises as ``shared_key``."""
    return shared_key(run_dir / _KEY_FILE)


def shared_key(path: Path) -> bytes:
    """The ``KEY_BYTES`` random bytes in ``path``, made by whichever process comes first.

    The key is written to a temporary file and then linked into place, so that no reader can see
    half of it and two writers cannot both win.

    Raises:
        RuntimeDirError: the folder is not writable, or the key file is not what we write.
    """
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{path.stem}-")  # mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                os.unlink(temporary)
        key = path.read_bytes()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise RuntimeDirError(
            f"{path}: {error.strerror}; give the server its own state dir"
        ) from None
    if len(key) != KEY_BYTES or mode & 0o077:
        raise RuntimeDirError(
            f"{path}: not a {KEY_BYTES}-byte key of mode 0600; remove it and restart the server"
        )
    return key
