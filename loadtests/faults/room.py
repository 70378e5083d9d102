"""A server with small file systems of its own, so that filling them hurts nobody else.

It is started in a mount namespace in which /dev/shm and the audit's folder are small and new. That
takes no root where users may make namespaces. From outside they are seen through
``/proc/<pid>/root``.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from loadtests.faults.house import NotHere

#: Enough for every region of a server that is not loaded with long prompts, and for its audit.
SHM_BYTES, AUDIT_BYTES = 512 * 2**20, 16 * 2**20

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
_SCRIPT = """set -e
mount -t tmpfs -o size="$1",mode=1777 tmpfs /dev/shm
mount -t tmpfs -o size="$2",mode=0700 tmpfs "$3"
shift 3
exec "$@"
"""


def inside(
    command: Sequence[str],
    audit: Path,
    *,
    shm_bytes: int = SHM_BYTES,
    audit_bytes: int = AUDIT_BYTES,
) -> list[str]:
    """The command that starts ``command`` in such a room.

    Args:
        audit: the server's audit folder; made where it is missing. What lies there is hidden.

    Raises:
        NotHere: this machine makes no such namespaces.
    """
    if (problem := unavailable()) is not None:
        raise NotHere(problem)
    audit.mkdir(mode=0o700, parents=True, exist_ok=True)
    sizes = [str(shm_bytes), str(audit_bytes), str(audit.absolute())]
    return [*_NAMESPACE, "sh", "-c", _SCRIPT, "room", *sizes, *command]


def unavailable() -> str | None:
    """Why this machine has no such rooms; None where it has."""
    if shutil.which(_NAMESPACE[0]) is None:
        return "a room of its own takes unshare (util-linux)"
    probe = [*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]  # noqa: S108 - a new one
    done = subprocess.run(probe, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return f"a room of its own takes mount namespaces: {said[-1] if said else 'refused'}"
    return None
