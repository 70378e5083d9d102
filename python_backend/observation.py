"""Puts signals, breakers and metrics of one engine together."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from python_backend import lora_metrics
from python_backend.adapters.catalog import State
from python_backend.adapters.keeper import Keeper
from python_backend.adapters.store import Store
from python_backend.admission import Admission
from python_backend.breaker import State as Breaking
from python_backend.breaker_settings import BreakerSettings
from python_backend.canary import Canary
from python_backend.completion import CompletionSink, NoSink
from python_backend.completion_metrics import MetricsSink
from python_backend.engine import record
from python_backend.engine.base import Version
from python_backend.errors import NotFound
from python_backend.guard import SWITCH, Guard
from python_backend.metrics import Metrics
from python_backend.monitor import Monitor, by_state
from python_backend.nvml import Nvml
from python_backend.signals import SWITCH_WINDOW_S
from python_backend.trimming import Trimming

log = logging.getLogger(__name__)

#: How often NVML is asked, seconds.
GPUS_EVERY_S = 5.0
_STATES = tuple(state.value for state in State)


class Observation:
    """What watches one engine.

    Args:
        workers: how many of its workers publish a record.
        canary_s: how often a fingerprint is asked for, seconds; 0: never.
    """

    def __init__(
        self,
        settings: BreakerSettings,
        run_dir: Path,
        workers: int,
        engine: Store,
        keeper: Keeper,
        metrics: Metrics,
        admission: Admission,
        canary_s: float = 0.0,
    ) -> None:
        self._keeper, self._metrics = keeper, metrics
        self._admission, self._limits = admission, admission.scheduler.limits
        self._eased = settings.switch_rate.enforce
        metrics.declare(lora_metrics.REQUEST_FAMILIES)
        self.guard = Guard(settings, engine.preload, time.monotonic)
        self._monitor = Monitor(
            self.guard,
            [record.RecordFile(record.path_of(run_dir, worker)) for worker in range(workers)],
            metrics.put,
            versions=self._versions,
            adapters=self._adapters,
            shm=lambda: engine.shm_memory,
            after_look=self._after_look,
            by_time_share=settings.switch_rate.of == "time_share",
        )
        fragmentation = settings.fragmentation
        self._trimming = Trimming(
            engine, self.guard, fragmentation.close, fragmentation.hold_s, time.monotonic
        )
        if fragmentation.enforce:
            # Until it has closed: what was trimmed away would be copied again at once.
            open_states = (Breaking.OPEN, Breaking.HALF_OPEN)
            engine.close_shm_while(lambda: self.guard.shm_fragmentation.state in open_states)
        self._trims = fragmentation.enforce
        self._canary_s = canary_s
        self._canary = Canary(
            engine,
            # Not one that is on its way out: it would be read again for this.
            in_slots=lambda: engine.hosted.keys() & set(self._monitor.in_slots()),
            versions=self._versions,
            truth=self._monitor.truth,
            idle=lambda: not admission.total,
            lease=lambda v: keeper.versions.lease(v.lora_id, v.digest, used=False),
            judged=lambda version, right: self.guard.fingerprint(version, right=right),
        )
        self.guard.truth = self._truth
        self.guard.forgotten = self._canary.forget

    def _truth(self, version: Version) -> bool | None:
        return False if version.int_id in self._canary.wrong else self._monitor.truth(version)

    def sink(self, inner: CompletionSink | None) -> CompletionSink:
        """A sink that counts what it hands on to ``inner``, if there is one."""
        return MetricsSink(inner or NoSink(), self._metrics.put)

    async def follow(self) -> None:
        """Watches, for ever."""
        beside = [self._follow_gpus()]
        if self._canary_s:
            beside.append(self._canary.follow(self._canary_s, asyncio.sleep))
        tasks = [asyncio.get_running_loop().create_task(work) for work in beside]
        try:
            await self._monitor.follow(time.monotonic)
        finally:
            self.guard.stop()
            for task in tasks:
                task.cancel()

    def _after_look(self) -> None:
        self._ease()
        if self._trims:
            self._trimming.look()

    def _ease(self) -> None:
        """From its warning on, the switch rate makes admission spare switches.

        Requests for resident adapters may then pass others until those are overdue, which bounds
        the wait. Until it has closed again after it opened, switches are rationed to the rate below
        which it closes: an overdue request gets its slot when the ration has a switch due.
        """
        limits, breaker = self._limits, self.guard.switch_rate
        state = breaker.state if self._eased else Breaking.CLOSED
        if state is not Breaking.CLOSED:
            limits = dataclasses.replace(limits, affinity=max(limits.affinity, limits.patience))
        self._admission.scheduler.limits = limits
        rationed = state in (Breaking.OPEN, Breaking.HALF_OPEN)
        # Of a rate of 0 nobody would ever get a slot: one in the signal's window stays.
        least, close = 1 / SWITCH_WINDOW_S, breaker.rule.close
        rate = max(self._monitor.switches_at(close), least) if rationed else None
        self._admission.ration_switches(rate)
        self.guard.refusals[SWITCH] = self._admission.ration_refusals

    async def _follow_gpus(self) -> None:
        nvml = await asyncio.to_thread(Nvml)
        while True:
            try:
                self._metrics.put(await asyncio.to_thread(nvml.updates))
            except Exception:
                log.exception("figures of GPUs could not be read")
            if not nvml.available:
                return
            await asyncio.sleep(GPUS_EVERY_S)

    def _versions(self) -> Mapping[int, Version]:
        versions = self._keeper.versions
        found = {}
        for lora_id, digest in versions.int_ids():
            try:
                version = versions.get(lora_id, digest)
            except NotFound:  # It has gone this moment.
                continue
            found[version.int_id] = version
        return found

    def _adapters(self) -> Mapping[str, int]:
        disabled = self._keeper.book.current.disabled
        states = [
            State.DISABLED if entry.lora_id in disabled and entry.state is State.READY
            else entry.state
            for entry in self._keeper.shelf.entries().values()
        ]  # fmt: skip
        return by_state(states, _STATES)
