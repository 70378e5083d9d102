"""Where operators' commands are carried out, on the engine's event loop, without blocking it."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from python_backend.adapters import incoming
from python_backend.adapters.catalog import RECHECK_S, State
from python_backend.adapters.keeper import Keeper
from python_backend.admin import aliasing, breaking, listing, warming
from python_backend.admin.changes import Changes
from python_backend.admin.commands import Command
from python_backend.admin.engine_view import EngineView
from python_backend.admin.fetching import Fetching
from python_backend.admin.jobs import Job, Jobs
from python_backend.engine.base import Engine, EngineInfo
from python_backend.errors import InvalidArgument, NotFound, Unavailable
from python_backend.guard import Guard
from python_backend.settings import AdapterSettings
from python_backend.ticket import Ticket

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long after a change it is acknowledged, seconds. A gate decides by a snapshot that it looked
#: for at most ``RECHECK_S`` ago, so by then every decision rests on the new one. A gate that told
#: which generation it has seen would tell it only when somebody calls: an idle one never would.
ACKNOWLEDGE_S = RECHECK_S + 0.1
#: Threads for what touches the disk.
_THREADS = 4


class Desk:
    """Carries out commands that a gate has allowed.

    Args:
        view: the engine's slots and host cache.
        heals: how often the KV cache was healed.
        held_back: whether a breaker's warning stops what no request waits for.
        cancel: cancels a request by uid if it is this department's (None: anybody's); whether
            there was one.
        guard: the breakers, where anything is watched.
    """

    def __init__(
        self,
        keeper: Keeper,
        engine: Engine,
        info: EngineInfo,
        settings: AdapterSettings,
        *,
        boot_id: str,
        view: EngineView,
        heals: Callable[[], int],
        held_back: Callable[[], bool],
        cancel: Callable[[str, str | None], bool],
        guard: Guard | None = None,
    ) -> None:
        self._keeper, self._engine, self._info = keeper, engine, info
        self._changes = Changes(keeper, settings)
        self._fetching = Fetching(settings.root, keeper.sources)
        self._guard = guard
        self._boot_id, self._view, self._heals, self._cancel = boot_id, view, heals, cancel
        self._held_back = held_back
        self._began_s = time.monotonic()
        if len(keeper.book.current.pinned) >= info.max_loras:
            log.warning("more adapters are pinned than max_loras leaves room for: unpin some")
        self.jobs = Jobs(time.monotonic)
        self._threads = ThreadPoolExecutor(_THREADS, "admin")

    async def answer(self, command: Command, ticket: Ticket) -> str:
        """What came of ``command``, as JSON.

        Raises:
            ServingError: what is wrong with it, or with the adapter.
        """
        if command.op == "cancel":
            whose = None if command.by_admin else ticket.department
            return _json(cancelled=self._cancel(command.request_uid, whose))
        carry_out = getattr(self, f"_{command.op}")
        about = command.lora_id or command.alias or command.breaker
        log.info("admin %s: %s %s", ticket.principal, command.op, about)
        result: str = await carry_out(command)
        return result

    async def _list(self, command: Command) -> str:
        await self._view.refresh()
        return _json(adapters=self._rows(), root_problem=self._keeper.root_problem or None)

    async def _status(self, command: Command) -> str:
        await self._view.refresh()
        info, decided = self._info, self._keeper.book.current
        return _json(
            boot_id=self._boot_id,
            engine_version=info.engine_version,
            missing=list(info.missing),
            uptime_s=round(time.monotonic() - self._began_s, 3),
            adapters=listing.counts(self._rows()),
            pinned=len(decided.pinned),
            slots={"used": len(self._view.residents.slots), "all": info.max_loras},
            host_cache=len(self._view.residents.host),
            leases=self._keeper.versions.leases,
            jobs_running=self.jobs.running,
            heals=self._heals(),
            policy_error=command.policy_error or None,
            root_problem=self._keeper.root_problem or None,
        )

    def _rows(self) -> list[dict[str, Any]]:
        keeper = self._keeper
        return listing.rows(
            keeper.shelf.entries().values(),
            [version for version, _ in keeper.retiring()],
            keeper.book.current,
            keeper.versions.usage,
            keeper.versions.int_ids(),
            self._view.residents,
            time.monotonic(),
        )

    async def _add(self, command: Command) -> str:
        return self._bring(command, self._changes.add)

    async def _update(self, command: Command) -> str:
        return self._bring(command, self._changes.update)

    def _bring(self, command: Command, bring: Callable[..., str]) -> str:
        # Refused at once and not by a job: it costs nothing to find out.
        source = self._changes.source(command.source, command.sha256)

        async def work(job: Job) -> str:
            job.step, job.may_cancel = "waiting", True
            # Not under the claim: a slow source must not keep the adapter from being removed.
            async with (
                self._fetching.arrived(source, job) as found,
                self._keeper.claims.hold(command.lora_id),
            ):
                # From here on a thread is at it, and what it does is whole or not at all.
                job.step, job.may_cancel = "copying and judging", False
                outcome = await self._blocking(
                    lambda: bring(command.lora_id, found, command.sha256)
                )
            job.step = "announcing"
            await asyncio.sleep(ACKNOWLEDGE_S)
            return outcome

        return self._started(command, work)

    def _started(self, command: Command, work: Callable[[Job], Awaitable[str]]) -> str:
        job = self.jobs.start(command.op, command.lora_id, work)
        return _json(job=job.job, state=job.state)

    async def _remove(self, command: Command) -> str:
        lora_id = command.lora_id
        async with self._keeper.claims.hold(lora_id):
            hidden = await self._blocking(lambda: self._changes.remove(lora_id))
        leaving = [done for version, done in self._keeper.retiring() if version.lora_id == lora_id]

        async def work(job: Job) -> str:
            job.step = "draining"
            await asyncio.gather(*map(asyncio.wrap_future, leaving), return_exceptions=True)
            job.step = "deleting"
            if hidden is not None:
                await self._blocking(lambda: incoming.discard(hidden))
            return "removed"

        job = self.jobs.start(command.op, lora_id, work)
        await asyncio.sleep(ACKNOWLEDGE_S)
        return _json(status="removed", job=job.job)

    async def _disable(self, command: Command) -> str:
        self._entry(command)
        return await self._decide("disabled", lambda d: d.disable(command.lora_id))

    async def _enable(self, command: Command) -> str:
        self._entry(command)
        return await self._decide("enabled", lambda d: d.enable(command.lora_id))

    async def _pin(self, command: Command) -> str:
        self._entry(command)
        most = self._info.max_loras - 1

        def pin(decided: Any) -> Any:
            pinned = decided.pin(command.lora_id)
            if len(pinned.pinned) > most and pinned != decided:
                raise InvalidArgument(
                    "lora_id", f"at most {most} may be pinned: one slot stays free for the others"
                )
            return pinned

        return await self._decide("pinned", pin)

    async def _unpin(self, command: Command) -> str:
        return await self._decide("unpinned", lambda d: d.unpin(command.lora_id))

    async def _warm(self, command: Command) -> str:
        entry = self._entry(command)
        if entry.state is not State.READY:
            raise NotFound

        engine, versions = self._engine, self._keeper.versions
        work = functools.partial(warming.warm, entry, engine, versions, self._held_back)
        return self._started(command, work)

    async def _job(self, command: Command) -> str:
        return _json(**self.jobs.get(command.job).shown(time.monotonic()))

    async def _job_cancel(self, command: Command) -> str:
        return _json(cancelled=self.jobs.cancel(command.job))

    async def _aliases(self, command: Command) -> str:
        return _json(aliases=aliasing.shown(self._keeper.routes(), self._keeper.book.current))

    async def _alias_set(self, command: Command) -> str:
        route = aliasing.route(command, self._keeper.shelf.entries())
        return await self._decide("set", lambda d: d.set_alias(command.alias, route))

    async def _alias_rollback(self, command: Command) -> str:
        return await self._decide("rolled back", aliasing.rollback(command.alias))

    async def _breakers(self, command: Command) -> str:
        return _json(breakers=breaking.rows(self._guard, time.monotonic()))

    async def _breaker_reset(self, command: Command) -> str:
        return _json(status="reset", changed=breaking.reset(self._guard, command.breaker))

    def _entry(self, command: Command) -> Any:
        entry = self._keeper.shelf.entries().get(command.lora_id)
        if entry is None:
            raise NotFound
        return entry

    async def _decide(self, done: str, change: Callable[[Any], Any]) -> str:
        """Writes a decision down, publishes it, and answers when every gate goes by it."""
        changed = await self._blocking(lambda: self._keeper.decide(change))
        if changed:
            await asyncio.sleep(ACKNOWLEDGE_S)
        return _json(status=done, changed=changed)

    async def _blocking(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            log.error("an admin operation failed: %s", error)
            raise Unavailable("the server's state cannot be written.") from None

    async def stop(self) -> None:
        """Cancels the jobs; what is on the disk is whole whenever that is."""
        await self.jobs.stop()
        self._view.stop()
        self._fetching.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _json(**body: Any) -> str:
    return json.dumps(body, separators=(",", ":"))
