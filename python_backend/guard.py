"""What an open breaker does to a request. Lives on the engine's event loop.

- Routing: one breaker for each version. Open, its requests are ``breaker_open``, but for leased
  probes; what is known to lie in its slot by mistake is never answered from.
- Load latency, and fragmentation of the device's memory: a version that the engine does not hold
  is not loaded while a request waits. Load latency: it is warmed in the background meanwhile, and
  being resident ends it. Fragmentation: nothing new enters that pool.
- Switch rate: not enforced here: it is admission that chooses who takes a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from python_backend.breaker import Breaker, Permit, State
from python_backend.breaker_settings import BreakerSettings
from python_backend.engine.base import Version
from python_backend.errors import AdapterFailed, BreakerOpen
from python_backend.signals import RouteErrors

log = logging.getLogger(__name__)

SWITCH, FRAGMENTATION, LOAD, ROUTING = "switch_rate", "fragmentation", "load_latency", "routing"
SIGNALS = (SWITCH, FRAGMENTATION, LOAD, ROUTING)
#: Versions with a breaker of their own; that of the least recently used one is forgotten.
_MAX_ROUTES = 1000
_MAX_WARMING = 8


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
        self.load_latency = Breaker(settings.load_latency.rule())
        self._routes: OrderedDict[int, tuple[Breaker, RouteErrors]] = OrderedDict()
        #: Over all versions.
        self.route_errors = RouteErrors()
        self._forgotten: Counter[State] = Counter()
        self._warming: dict[int, asyncio.Task[None]] = {}
        #: What the worker is known to have read for an id: right (True), wrong, or not known.
        self.truth: Callable[[Version], bool | None] = lambda version: None
        #: Whether the engine holds a version in slot or host cache.
        self.resident: Callable[[int], bool] = lambda int_id: True
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
        breaker, errors = self._route(version)
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

    def _check_load(self, version: Version) -> None:
        if self.resident(version.int_id):
            return
        now_s = self._clock()
        if self._settings.fragmentation.enforce and self.fragmentation.state is State.OPEN:
            raise self._refused(FRAGMENTATION, self.fragmentation)
        if not self._settings.load_latency.enforce:
            return
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

    def _route(self, version: Version) -> tuple[Breaker, RouteErrors]:
        found = self._routes.get(version.int_id)
        if found is None:
            breaker = Breaker(self._settings.routing.rule())
            found = self._routes[version.int_id] = (breaker, RouteErrors(breaker))
            if len(self._routes) > _MAX_ROUTES:
                _, (old, _) = self._routes.popitem(last=False)
                self._forgotten.update(old.transitions)
        self._routes.move_to_end(version.int_id)
        return found

    def states(self) -> dict[str, State]:
        """Of each signal the state that is worst for callers, routing's over all versions."""
        worst = (State.CLOSED, State.WARNING, State.HALF_OPEN, State.OPEN).index
        routes = [breaker.state for breaker, _ in self._routes.values()]
        return {
            SWITCH: self.switch_rate.state,
            FRAGMENTATION: self.fragmentation.state,
            LOAD: self.load_latency.state,
            ROUTING: max(routes, key=worst, default=State.CLOSED),
        }

    def transitions(self) -> dict[str, Counter[State]]:
        """How often the breakers of each signal entered each state."""
        routes = Counter(self._forgotten)
        for breaker, _ in self._routes.values():
            routes.update(breaker.transitions)
        return {
            SWITCH: Counter(self.switch_rate.transitions),
            FRAGMENTATION: Counter(self.fragmentation.transitions),
            LOAD: Counter(self.load_latency.transitions),
            ROUTING: routes,
        }

    def reset(self, signal: str) -> None:
        """Closes a signal's breakers."""
        if signal == ROUTING:
            for breaker, _ in self._routes.values():
                breaker.reset()
        else:
            breakers = {
                SWITCH: self.switch_rate,
                FRAGMENTATION: self.fragmentation,
                LOAD: self.load_latency,
            }
            breakers[signal].reset()

    def stop(self) -> None:
        """Warms no more."""
        for task in self._warming.values():
            task.cancel()
