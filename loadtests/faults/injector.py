"""Injects faults beside a load, in a thread of its own, and remembers what it did when."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from loadtests.faults.house import House, NotHere
from loadtests.faults.kinds import KINDS, Kind
from loadtests.faults.schedule import Planned


@dataclasses.dataclass(frozen=True)
class Injected:
    """A fault that was injected. Seconds since the start of the load."""

    kind: str
    target: str
    at_s: float


class Injector:
    """As a context: while it lasts, faults are injected; at its end every one is undone.

    Args:
        now: seconds since the start of the load.
        say: gets a line for each fault.
    """

    def __init__(
        self,
        house: House,
        faults: Sequence[Planned],
        now: Callable[[], float],
        say: Callable[[str], None],
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self._house, self._faults, self._now = house, faults, now
        self._say, self._kinds = say, kinds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults")
        self.injected: list[Injected] = []
        #: Why a fault could not be injected, or undone.
        self.problems: list[str] = []

    def __enter__(self) -> Injector:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for fault in self._faults:
            if self._over.wait(max(0.0, fault.at_s - self._now())):
                return
            try:
                self._inject(fault)
            except NotHere as reason:
                self._problem(f"{fault.kind}: {reason}")
            except OSError as error:
                self._problem(f"{fault.kind}: {error}; what it changed may have to be put right")

    def _inject(self, fault: Planned) -> None:
        with self._kinds[fault.kind](self._house) as target:
            at_s = self._now()
            self.injected.append(Injected(fault.kind, target, at_s))
            self._say(f"{at_s:.1f} s: {fault.kind}, {target}")
            self._over.wait(fault.hold_s)

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self._say(text)
