"""Old audit files: which there are, and the removal of those beyond the number to keep."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from python_backend import runtime
from python_backend.audit.chain import FILE_SUFFIX, HEAD_SUFFIX, ChainError, Head

log = logging.getLogger(__name__)


def heads(folder: Path, key: bytes) -> list[Head]:
    """The readable heads in ``folder``, oldest file first; others are the verifier's business."""
    found = []
    for path in sorted(folder.glob(f"*{HEAD_SUFFIX}")):
        try:
            found.append(Head.unseal(path.read_bytes(), key))
        except (OSError, ChainError):
            continue
    return found


def is_written_to(head: Head) -> bool:
    """Whether the process that writes this file still runs."""
    return head.state == "open" and runtime.process_start(head.pid) == head.start


def prune(folder: Path, name: str, key: bytes, keep: int) -> None:
    """Removes the oldest files of ``name`` so that ``keep`` are left; those in use stay.

    The head stays as a tombstone, marked: a file that we removed is told from one that somebody
    else did. Never raises.
    """
    own = [
        head
        for head in heads(folder, key)
        if head.state != "removed" and head.file.rsplit("-", 4)[0] == name
    ]
    for head in own[: max(0, len(own) - keep)]:
        if is_written_to(head):
            continue
        path = folder / head.file
        try:
            tombstone = dataclasses.replace(head, state="removed").seal(key)
            temporary = path.with_suffix(".removed")
            temporary.write_bytes(tombstone)
            temporary.chmod(0o600)
            temporary.replace(path.with_suffix(HEAD_SUFFIX))
            path.unlink(missing_ok=True)
        except OSError as error:
            log.error("%s cannot be removed: %s", path, error.strerror)


def files(folder: Path) -> list[Path]:
    """The audit files in ``folder``, oldest first."""
    return sorted(folder.glob(f"*{FILE_SUFFIX}"))
