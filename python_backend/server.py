"""The engine model's life: start the engine, list the adapters, answer, stop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from python_backend import (
    cores,
    lora_metrics,
    model_json,
    presence,
    runtime,
    settings,
    vllm_metrics,
)
from python_backend.adapters import catalog, multi_lora
from python_backend.adapters.keeper import Keeper
from python_backend.adapters.tiering import Tiering, strained
from python_backend.admin.desk import Desk
from python_backend.admin.engine_view import EngineView
from python_backend.admission import Admission, gauges, shares
from python_backend.audit.completions import AuditSink, open_sink
from python_backend.completion import CompletionSink, Responder
from python_backend.engine import arguments, fitting, orphans, record, stats
from python_backend.engine.async_llm import AsyncLLMEngine
from python_backend.engine.base import Engine, EngineInfo
from python_backend.fusion.assembly import assembled
from python_backend.guard import Guard
from python_backend.health import HealthCheck
from python_backend.metrics import Backend, Metrics, Update
from python_backend.model_options import ModelOptions
from python_backend.observation import Observation
from python_backend.service import Call, GenerateService
from python_backend.settings import Settings
from python_backend.watchdog import Watchdog

log = logging.getLogger(__name__)

#: How often the engine is asked what is in its slots, seconds.
_SLOTS_EVERY_S = 30.0


class EngineServer:
    """Owns the engine, its event loop, the catalog and the service.

    Args:
        version_dir: the model's version folder, where a ``model.json`` and a ``multi_lora.json``
            may lie.
        options: the model's name and parameters.
        metrics: where metrics are shown.
        server_run_dir: where the server's processes leave their records.
        unload: asks Triton to unload the model; called when the engine has died.
    """

    def __init__(
        self,
        config: Settings,
        version_dir: Path,
        options: ModelOptions,
        metrics: Backend,
        server_run_dir: Path,
        unload: Callable[[], None],
    ) -> None:
        self._server_run_dir = server_run_dir
        self._settings, self._version_dir = config, version_dir
        self._options, self._metrics_backend = options, metrics
        self._metrics: Metrics | None = None
        self._health = HealthCheck(options.health_check, unload)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._engine: Engine | None = None
        self._tiering: Tiering | None = None
        self._keeper: Keeper | None = None
        self._service: GenerateService | None = None
        self._desk: Desk | None = None
        self._watchdog: Watchdog | None = None
        self._followers: list[Future[None]] = []
        self._sink: AuditSink | None = None

    @property
    def ready(self) -> bool:
        """Whether the engine can answer."""
        return self._engine is not None and self._engine.alive

    def start(self) -> None:
        """Returns when requests can be answered.

        Raises:
            SettingsError, EngineStartError, RuntimeDirError, AuditError: with the key or file
                and the cure.
        """
        began = time.monotonic()
        config = self._settings
        key = runtime.ticket_key(config.run_dir)
        self._sink = open_sink(config, self._options.name)
        boot_id = runtime.boot_id()
        root = config.adapters.root
        if not root.is_dir():
            raise settings.SettingsError(f"adapters.root: {root} is not a folder; make it")
        orphans.claim()
        raw = {**model_json.load(self._version_dir / model_json.FILE), **config.engine}
        aliases = {name: route.to for name, route in config.aliases.items()}
        listed = multi_lora.load(self._version_dir / multi_lora.MULTI_LORA_JSON, aliases, root)
        known = sum(1 for _ in root.iterdir()) + len(listed)
        reserve = config.admission.reserve_seats
        observed = config.observation.enabled
        # Mixtures lie in the host cache beside the adapters.
        engine_args = arguments.engine_arguments(
            raw, known + config.fusion.max_live, reserve, observed=observed
        )
        fitting.check(engine_args, config.memory_limit_bytes)
        arguments.choose_devices(self._options.devices)
        arguments.prepare_process(engine_args, cores.usable_cores(), gpu=arguments.has_gpu())
        metrics = self._metrics = self._new_metrics(engine_args)
        # Before the engine starts: its statistics show what has changed since its first step.
        metrics.declare(lora_metrics.ENGINE_FAMILIES)
        # Without metrics vLLM is not asked to collect statistics for us.
        loggers = [stats.factory(metrics.put)] if metrics.wanted else []
        flag_path = config.run_dir / "worker-failures"
        record.clear(config.run_dir)
        engine = AsyncLLMEngine(engine_args, flag_path, stat_loggers=loggers)
        self._engine = engine
        self._thread.start()
        info = self._wait(engine.start())
        metrics.declare(vllm_metrics.families(info.max_model_len))
        metrics.put([Update(lora_metrics.MISSING, (float(len(info.missing)),))])
        metrics.put(fitting.budgets(config.memory_limit_bytes))
        engine_ready = time.monotonic()
        tiering = self._tiering = Tiering(engine, config.tiers, engine_args)
        store = tiering.store
        keeper = Keeper(config, store, info, self._loop, boot_id=boot_id, listed=listed)
        self._keeper = keeper
        entries = keeper.open()
        admission = self._new_admission(engine, info, metrics)
        # What the host's cache puts out leaves its slot, too.
        store.left = admission.scheduler.slots.gone
        workers = arguments.workers(engine_args)
        guard: Guard | None = None
        sink: CompletionSink | None = self._sink
        if config.observation.enabled:
            watched = Observation(
                config.breakers,
                config.run_dir,
                workers,
                store,
                keeper,
                metrics,
                admission,
                config.observation.canary_s,
            )
            guard, sink = watched.guard, watched.sink(self._sink)
            self._followers.append(asyncio.run_coroutine_threadsafe(watched.follow(), self._loop))
        held_back = lambda: guard is not None and strained(guard.states(), config.breakers)  # noqa: E731
        beginning = tiering.begin(keeper, held_back, metrics.put, admission, config.state_dir)
        self._wait(beginning)
        mixtures = assembled(
            config.fusion, keeper, store, info.target, config.staged_dir, metrics.put
        )
        self._followers.append(asyncio.run_coroutine_threadsafe(mixtures.follow(), self._loop))
        self._service = GenerateService(
            store,
            info,
            keeper.versions,
            admission,
            key=key,
            boot_id=boot_id,
            sink=sink,
            guard=guard,
            mixtures=mixtures,
            distribution=config.fusion.distribution,
        )
        self._service.desk = self._desk = Desk(
            keeper,
            store,
            info,
            config.adapters,
            boot_id=boot_id,
            view=EngineView(tiering.state),
            heals=lambda: engine.heals,
            held_back=held_back,
            cancel=self._service.cancel_request,
            guard=guard,
        )
        self._watch(self._service, engine)
        ready = sum(entry.state is catalog.State.READY for entry in entries.values())
        log.info(
            "ready: vLLM %s, %d adapters of %d, engine %.1f s, scan %.1f s",
            info.engine_version,
            ready,
            len(entries),
            engine_ready - began,
            time.monotonic() - engine_ready,
        )
        if info.missing:
            log.warning("this vLLM lacks %s: public calls only", ", ".join(info.missing))

    def _new_admission(
        self, engine: AsyncLLMEngine, info: EngineInfo, metrics: Metrics
    ) -> Admission:
        config = self._settings
        limits = config.admission.limits(
            seats=max(1, info.max_num_seqs - config.admission.reserve_seats),
            slots=info.max_loras,
            max_pending=config.limits.max_pending,
        )
        admission = Admission(limits)
        engine.on_step = admission.stepped
        metrics.declare(gauges.FAMILIES)
        gauges.Gauges(admission, metrics.put)
        self._followers = [
            asyncio.run_coroutine_threadsafe(work, self._loop)
            for work in (
                shares.follow(config.policy, admission.set_shares),
                self._follow_slots(admission),
            )
        ]
        return admission

    async def _follow_slots(self, admission: Admission) -> None:
        """Tells admission now and then what is in the slots: loads that it did not decide on
        have changed them. Asking costs no time of the engine, but the answer comes a step later.
        """
        while isinstance(engine := self._engine, AsyncLLMEngine) and engine.alive:
            await asyncio.sleep(_SLOTS_EVERY_S)
            try:
                found = (await engine.state())["slots"]
            except Exception:
                log.warning("the engine's slots cannot be asked for", exc_info=True)
            else:
                admission.scheduler.slots.correct(slot for slot in found if slot is not None)

    def _watch(self, service: GenerateService, engine: Engine) -> None:
        run_dir = self._server_run_dir
        watchdog = Watchdog(
            presence.announce(run_dir, self._options.name, heartbeat=True),
            alive=lambda: engine.alive,
            given_up=presence.Watch(run_dir, (presence.SERVER,)).lost,
            fail=service.fail_all,
            on_death=self._died,
        )
        self._watchdog = watchdog
        self._loop.call_soon_threadsafe(watchdog.start)

    def _died(self) -> None:
        catalog.withdraw(self._settings.run_dir)
        # In explicit mode readiness turns false with it.
        self._health.found_dead()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _new_metrics(self, engine_args: dict[str, Any]) -> Metrics:
        """The model's metrics; off as in the official backend, by parameter or engine argument."""
        options = self._options
        wanted = options.report_metrics and not engine_args.get("disable_log_stats")
        wanted = wanted and self._settings.observation.enabled
        labels = {"model": options.name, "version": options.version}
        return Metrics(self._metrics_backend if wanted else None, labels)

    def submit(self, call: Call, responder: Responder) -> None:
        """Starts answering a call; returns at once."""
        if (service := self._service) is None or (engine := self._engine) is None:
            raise RuntimeError("submit before start")
        work = service.handle(call, responder, refusal := self._health.refusal(engine.alive))
        handled = asyncio.run_coroutine_threadsafe(work, self._loop)
        if refusal:
            handled.add_done_callback(lambda _: self._health.found_dead())

    def stop(self) -> None:
        """Cancels what is under way, ends the engine and its processes. Callable more than once."""
        if not self._thread.is_alive():
            return
        if self._watchdog is not None:
            self._wait(self._watchdog.stop())
        if self._desk is not None:
            self._wait(self._desk.stop())
        if self._keeper is not None:
            self._keeper.close()
        if self._service is not None:
            self._wait(self._service.stop(self._settings.admission.drain_s))
        for follower in self._followers:
            follower.cancel()
        if self._tiering is not None:
            self._wait(self._tiering.stop())
        if self._engine is not None:
            self._wait(self._engine.stop())
        if self._sink is not None:
            self._sink.close()
        if self._metrics is not None:
            self._metrics.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
