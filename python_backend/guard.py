"""What an open breaker does to a request. Lives on the engine's event loop.

- Routing: one breaker for each version. Open, its requests are ``breaker_open``, but for leased
  probes; what is known to lie in its slot by mistake is never answered from.
- Load latency, and fragmentation of the device's memory: a version that the engine does not hold
  is not loaded while a request waits. Load latency: it is warmed in the background meanwhile, and
  being resident ends it. Fragmentation: nothing new enters that pool.
- Switch rate: not enforced here: it is admission that chooses who takes a slot, and when.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from python_backend.breaker import Breaker, Permit, State
from python_backend.breaker_settings import BreakerSettings
from python_backend.engine.base import Version
from python_backend.errors import AdapterFailed, BreakerOpen
from python_backend.signals import LoadLatency, RouteErrors

log = logging.getLogger(__name__)

SWITCH, FRAGMENTATION, LOAD, ROUTING = "switch_rate", "fragmentation", "load_latency", "routing"
SIGNALS = (SWITCH, FRAGMENTATION, LOAD, ROUTING)
#: What a breaker that is not an adapter's watches, by signal.
ENGINE, DEVICE, SHM, HOST = "engine", "device", "shm", "host"
#: Versions with a breaker of their own; that of the least recently used one is forgotten.
_MAX_ROUTES = 1000
_MAX_WARMING = 8


@dataclasses.dataclass(frozen=True)
class _Route:
    """What watches one version's answers."""

    name: str
    breaker: Breaker
    errors: RouteErrors


class Guard:
    """The breakers of one engine.

    Args:
        warm: loads a version, off the request path.
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        settings: BreakerSettings,
        warm: Callable[[Version], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._settings, self._warm, self._clock = settings, warm, clock
        self.switch_rate = Breaker(settings.switch_rate.rule())
        self.fragmentation = Breaker(settings.fragmentation.rule())
        self.shm_fragmentation = Breaker(settings.fragmentation.rule())
        self.load_latency = Breaker(settings.load_latency.rule())
        per_mib = settings.load_latency.of == "seconds_per_mib"
        self.latency = LoadLatency(self.load_latency, per_mib=per_mib)
        self._routes: OrderedDict[int, _Route] = OrderedDict()
        #: Over all versions.
        self.route_errors = RouteErrors()
        self._forgotten: Counter[State] = Counter()
        self._warming: dict[int, asyncio.Task[None]] = {}
        #: What the worker is known to have read for an id: right (True), wrong, or not known.
        self.truth: Callable[[Version], bool | None] = lambda version: None
        #: Whether the engine holds a version in slot or host cache.
        self.resident: Callable[[int], bool] = lambda int_id: True
        #: Called when routing's breakers are reset by hand.
        self.forgotten: Callable[[], None] = lambda: None
        self.checks: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    @contextmanager
    def entered(self, version: Version | None) -> Iterator[None]:
        """Around the work on one request.

        Raises:
            BreakerOpen: a breaker keeps it out.
            AdapterFailed: the engine is known to hold other weights under the version's id.
        """
        if version is None:
            yield
            return
        self._check_load(version)
        route = self._route(version)
        breaker, errors = route.breaker, route.errors
        permit = breaker.permit(self._clock()) if self._settings.routing.enforce else Permit()
        if permit is None:
            raise self._refused(ROUTING, breaker)
        try:
            if self.truth(version) is False:
                self._answered(errors, wrong=True)
                log.error("the engine holds other weights under the id of %s", version.name)
                raise AdapterFailed("the engine holds other weights for this adapter.")
            yield
            # Only an answer tells of its weights: errors and cancels are neutral.
            truth = self.truth(version)
            if truth is not None:
                self._answered(errors, wrong=not truth)
        finally:
            breaker.done(permit)

    def _answered(self, errors: RouteErrors, *, wrong: bool) -> None:
        now_s = self._clock()
        self.checks["wrong" if wrong else "right"] += 1
        errors.answered(wrong=wrong, now_s=now_s)
        self.route_errors.answered(wrong=wrong, now_s=now_s)

    def fingerprint(self, version: Version, *, right: bool) -> None:
        """A canary's verdict on a version: as an answer whose weights are known."""
        self._answered(self._route(version).errors, wrong=not right)

    def _check_load(self, version: Version) -> None:
        if self.resident(version.int_id):
            return
        now_s = self._clock()
        if self._settings.fragmentation.enforce and self.fragmentation.state is State.OPEN:
            raise self._refused(FRAGMENTATION, self.fragmentation)
        if not self._settings.load_latency.enforce:
            return
        if self.latency.culprit not in (None, version.int_id):
            return  # It is not the tier that is slow.
        permit = self.load_latency.permit(now_s)
        if permit is None:
            self._warm_soon(version)
            raise self._refused(LOAD, self.load_latency)
        # A load tells of itself, whoever waits for it: its lease ends by time.

    def _refused(self, signal: str, breaker: Breaker) -> BreakerOpen:
        self.refusals[signal] += 1
        wait_s = 1.0 if signal == LOAD else round(breaker.retry_after_s(self._clock()))
        return BreakerOpen(f"{signal} is over its threshold.", retry_after=wait_s)

    def _warm_soon(self, version: Version) -> None:
        if version.int_id in self._warming or len(self._warming) >= _MAX_WARMING:
            return
        task = asyncio.get_running_loop().create_task(self._warmed(version))
        self._warming[version.int_id] = task

    async def _warmed(self, version: Version) -> None:
        try:
            await self._warm(version)
        except Exception:
            log.exception("%s could not be warmed", version.name)
        finally:
            del self._warming[version.int_id]

    def _route(self, version: Version) -> _Route:
        found = self._routes.get(version.int_id)
        if found is None:
            breaker = Breaker(self._settings.routing.rule())
            found = _Route(version.name, breaker, RouteErrors(breaker))
            self._routes[version.int_id] = found
            if len(self._routes) > _MAX_ROUTES:
                _, old = self._routes.popitem(last=False)
                self._forgotten.update(old.breaker.transitions)
        self._routes.move_to_end(version.int_id)
        return found

    def named(self) -> Iterator[tuple[str, str, Breaker]]:
        """Every breaker with its signal and its scope; routing's scope is a version's name."""
        yield SWITCH, ENGINE, self.switch_rate
        yield FRAGMENTATION, DEVICE, self.fragmentation
        yield FRAGMENTATION, SHM, self.shm_fragmentation
        yield LOAD, HOST, self.load_latency
        for route in self._routes.values():
            yield ROUTING, route.name, route.breaker

    def states(self) -> dict[str, State]:
        """Of each signal the state that is worst for callers, over all its scopes."""
        worst = (State.CLOSED, State.WARNING, State.HALF_OPEN, State.OPEN).index
        found = dict.fromkeys(SIGNALS, State.CLOSED)
        for signal, _, breaker in self.named():
            found[signal] = max(found[signal], breaker.state, key=worst)
        return found

    def transitions(self) -> dict[str, Counter[State]]:
        """How often the breakers of each signal entered each state."""
        found = {signal: Counter[State]() for signal in SIGNALS}
        found[ROUTING].update(self._forgotten)
        for signal, _, breaker in self.named():
            found[signal].update(breaker.transitions)
        return found

    def reset(self, signal: str, scope: str = "") -> int | None:
        """Closes a signal's breakers, or the one of ``scope``, and forgets what opened them.

        Args:
            scope: as ``named`` has it; of routing also a lora_id, for all its versions.

        Returns:
            How many were not closed before; None where there is no such breaker.
        """
        found = [
            breaker
            for of, name, breaker in self.named()
            if of == signal and scope in ("", name, name.partition("@")[0])
        ]
        if not found and (scope or signal not in SIGNALS):
            return None
        changed = sum(breaker.state is not State.CLOSED for breaker in found)
        for breaker in found:
            breaker.reset()
        # Else the next value would open it again for what is over.
        if signal == LOAD:
            self.latency.clear()
        elif signal == ROUTING:
            self.forgotten()
        for route in self._routes.values():
            if route.breaker in found:
                route.errors.clear()
        return changed

    def stop(self) -> None:
        """Warms no more."""
        for task in self._warming.values():
            task.cancel()
