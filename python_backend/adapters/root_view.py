"""What the adapter root looks like, and whether that is to be believed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from python_backend.adapters import naming
from python_backend.adapters.settling import Fingerprint

log = logging.getLogger(__name__)


def fingerprints(root: Path) -> dict[str, Fingerprint]:
    """What each well-named folder under ``root`` looks like.

    Raises:
        OSError: the root cannot be listed.
    """
    found: dict[str, Fingerprint] = {}
    with os.scandir(root) as folders:
        for folder in folders:
            if naming.is_lora_id(folder.name):
                found[folder.name] = _fingerprint(folder.path)
    return found


def _identity(root: Path) -> tuple[int, int]:
    status = root.stat()
    return status.st_dev, status.st_ino


def _fingerprint(folder: str) -> Fingerprint:
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                files.append((entry.name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    except OSError as error:
        # Gone, a plain file, or not readable: judging it will say so.
        return (("", -1, error.errno or 0, 0),)
    return tuple(sorted(files))


class RootView:
    """Looks at one root; for one thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        #: What is wrong with the root as a whole; empty while nothing is.
        self.problem = ""
        self._identity: tuple[int, int] | None = None

    def first(self) -> dict[str, Fingerprint]:
        """The fingerprints at the start.

        Raises:
            OSError: the root cannot be listed.
        """
        self._identity = _identity(self._root)
        return fingerprints(self._root)

    def look(self, *, anything_known: bool) -> dict[str, Fingerprint] | None:
        """The fingerprints now; None where they are no reason to remove what is served.

        Args:
            anything_known: whether there were adapters before.
        """
        try:
            identity = _identity(self._root)
            seen = fingerprints(self._root)
            replaced = identity != _identity(self._root)
        except OSError as error:
            self._say(f"the adapter root cannot be listed: {error.strerror}; nothing is removed.")
            return None
        if not seen and identity != self._identity and anything_known:
            # As where a file system is not mounted any more.
            self._say("the adapter root is another folder than before, and empty; see to it.")
            return None
        if replaced:
            return None
        self._identity = identity
        self._say("")
        return seen

    def _say(self, problem: str) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            log.error("%s", problem)
        else:
            log.info("the adapter root is well again")
