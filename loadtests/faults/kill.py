"""``kill -9`` of one process of the server. To come back is its supervisor's affair."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from loadtests.faults.house import House, NotHere


def kill(part: str) -> Callable[[House], contextlib.AbstractContextManager[str]]:
    """The fault that kills ``part``."""

    @contextlib.contextmanager
    def fault(house: House) -> Iterator[str]:
        pid = house.pid(part)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise NotHere(f"{part} (pid {pid}) has just ended by itself") from None
        yield f"{part} (pid {pid})"

    return fault
