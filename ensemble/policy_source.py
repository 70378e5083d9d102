"""The policy file as a gate holds it: read at the start, read again when it has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ensemble.access import Policy, PolicyError, load_policy
from ensemble.jwt_keys import KeyFileError
from python_backend import files


class PolicySource:
    """The newest good policy. Thread-safe.

    A file that turns bad while the server runs changes nothing: the last good policy stays, and
    ``on_error`` hears why, once for each change of the file. The same holds for the key file of
    the policy's tokens.

    Args:
        path: the policy file.
        on_error: gets the text of the error; must not raise.
        on_load: gets the policy that is used from now on; must not raise.
        recheck_s: how often the file is looked at, at most, seconds.

    Raises:
        PolicyError: the file cannot be used at the start.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_error: Callable[[str], None] = lambda text: None,
        on_load: Callable[[Policy], None] = lambda policy: None,
        recheck_s: float = 0.5,
    ) -> None:
        self._path = path
        self._on_error, self._on_load = on_error, on_load
        self._recheck_s = recheck_s
        self._lock = threading.Lock()
        self._checked_s = float("-inf")
        #: Why the file as it is now is not used, or None.
        self.error: str | None = None
        # Looked at before it is read: a change in between is then seen at the next look.
        self._stamp = files.stamp(path)
        self._policy = load_policy(path)
        self._key_error: str | None = None
        on_load(self._policy)

    def current(self, now_s: float) -> Policy:
        """The newest good policy; ``now_s`` is a monotonic clock, seconds. Never raises."""
        # Whoever finds another thread at the file goes on with the policy there is.
        if now_s - self._checked_s >= self._recheck_s and self._lock.acquire(blocking=False):
            try:
                self._refresh()
                self._checked_s = now_s
            finally:
                self._lock.release()
        return self._policy

    def _refresh(self) -> None:
        stamp = files.stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._policy = load_policy(self._path)
                self.error = self._key_error = None
                self._on_load(self._policy)
            except PolicyError as error:
                self.error = str(error)
                self._on_error(self.error)
        self._refresh_keys()

    def _refresh_keys(self) -> None:
        tokens = self._policy.tokens
        if tokens is None:
            return
        try:
            if tokens.keys.refresh() and self.error == self._key_error:
                self.error = self._key_error = None
        except KeyFileError as error:
            self.error = self._key_error = str(error)
            self._on_error(self.error)
