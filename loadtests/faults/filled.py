"""A file system without a byte left: /dev/shm, or where the audit is written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from loadtests.faults.house import House, NotHere
from tools.serving.shm import SHM

#: A larger file system is the machine's, and others write to it: it is never filled. ``room`` makes
#: small ones that are a server's own.
LARGEST = 2 * 2**30
_FILE = "filled-by-a-load-test"
_CHUNK = 2**20


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fills the file system that ``folder`` lies on; free again at the end.

    Raises:
        NotHere: it is not a small one, or cannot be written.
    """
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise NotHere(f"{folder}: {error.strerror}") from None
    total = status.f_blocks * status.f_frsize
    if total > LARGEST:
        raise NotHere(
            f"{folder} lies on a file system of {total / 2**30:.1f} GiB, which others use too; "
            "start the server in a small room of its own (loadtests.faults.room)"
        )
    path = folder / _FILE
    try:
        try:
            _fill(path)
        except OSError as error:
            raise NotHere(f"{path}: {error.strerror}") from None
        yield
    finally:
        path.unlink(missing_ok=True)


def _fill(path: Path) -> None:
    """Bytes until there is no room for one more: large pieces first, then what still fits."""
    with path.open("wb", buffering=0) as file:
        size = _CHUNK
        while size:
            try:
                file.write(b"\0" * size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                size //= 2


@contextlib.contextmanager
def shm_full(house: House) -> Iterator[str]:
    """No shared memory left: Triton's processes cannot make or grow a region."""
    with filled(house.seen_by_server(SHM)):
        yield str(SHM)


@contextlib.contextmanager
def disk_full(house: House) -> Iterator[str]:
    """No line of the audit can be written."""
    audit = house.settings.audit_dir
    with filled(house.seen_by_server(audit)):
        yield audit.name
