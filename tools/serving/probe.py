"""Whether a running server still serves. Triton's own answer is not enough: version 24.10 says
that a model is ready long after the process behind it has been killed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from python_backend import presence, runtime

#: Seconds between two looks at the processes, and two questions to the server.
LOOK_EVERY_S, ASK_EVERY_S = 0.25, 2.0
#: Seconds for which a server may fail to say that it is ready: on a busy machine it may be slow.
UNREADY_LIMIT_S = 30.0


@dataclasses.dataclass(frozen=True)
class Sight:
    """What is to be seen of a server. ``unready_s``: how long it has not said it is ready."""

    exit_code: int | None = None
    lost: tuple[str, ...] = ()
    unready_s: float = 0.0


def verdict(sight: Sight) -> str | None:
    """Why the server no longer serves; None while it does."""
    if sight.exit_code is not None:
        code = sight.exit_code
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"tritonserver died ({how})"
    if sight.lost:
        return "; ".join(sight.lost)
    if sight.unready_s > UNREADY_LIMIT_S:
        return f"the server has not been ready for {sight.unready_s:.0f} s"
    return None


class Probe:
    """Looks at one server, as often as makes sense.

    Args:
        run_dir: its runtime directory.
        pid: tritonserver's process.
        exit_code: its exit code, None while it runs.
        is_ready: asks it whether it is ready.
    """

    def __init__(
        self,
        run_dir: Path,
        pid: int,
        exit_code: Callable[[], int | None],
        is_ready: Callable[[], bool],
    ) -> None:
        self._run_dir, self._boot_id = run_dir, runtime.boot_id(pid)
        self._exit_code, self._is_ready = exit_code, is_ready
        self._asked_s = self._ready_s = time.monotonic()

    def look(self) -> str | None:
        """Why the server no longer serves; None while it does."""
        now_s = time.monotonic()
        if now_s - self._asked_s >= ASK_EVERY_S:
            ready = self._is_ready()
            self._asked_s = now_s = time.monotonic()
            if ready:
                self._ready_s = now_s
        exit_code = self._exit_code()
        # Whether the server runs comes first: with it, all its processes end.
        lost = presence.lost(self._run_dir, self._boot_id) if exit_code is None else []
        return verdict(
            Sight(exit_code, tuple(loss.reason for loss in lost), self._asked_s - self._ready_s)
        )
