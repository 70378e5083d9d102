"""The adapters' side of the engine process: scan, watch, publish, retire."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from python_backend import runtime
from python_backend.adapters import (
    catalog,
    decisions,
    incoming,
    librarian,
    scan,
    signing_keys,
    staging,
)
from python_backend.adapters.aliases import Route
from python_backend.adapters.claims import Claims
from python_backend.adapters.decisions import Decisions
from python_backend.adapters.librarian import Librarian
from python_backend.adapters.retirement import retire
from python_backend.adapters.scan import Scanned
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.shelf import Shelf
from python_backend.adapters.staging_guard import StagingGuard
from python_backend.adapters.versions import Versions
from python_backend.engine.base import Engine, EngineInfo, Version
from python_backend.settings import Settings, SettingsError
from python_backend.source_settings import SourceSettings
from python_backend.ticket import USE_WITHIN_S

log = logging.getLogger(__name__)

#: How long tickets for a removed adapter are honoured, seconds: those that were on their way.
_REMOVED_GRACE_S = 2.0


class Keeper:
    """Owns shelf and librarian; the only writer of the catalog snapshot.

    Args:
        engine: started; ``info`` is what it said.
        loop: the engine's event loop.
        listed: adapters from a ``multi_lora.json``: folder by lora_id, fixed for this start.

    Raises:
        SettingsError: the keys of signatures, or what operators decided, cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        info: EngineInfo,
        loop: asyncio.AbstractEventLoop,
        *,
        boot_id: str,
        listed: Mapping[str, Path],
    ) -> None:
        self._settings, self._engine, self._info, self._loop = settings, engine, info, loop
        self._boot_id, self.listed = boot_id, listed
        self.versions = Versions()
        self.book = decisions.Book(settings.state_dir / decisions.FILE)
        self.claims, self.guard = Claims(), StagingGuard()
        self._signatures = signature_policy(settings)
        self._generation = 0
        self._retiring: set[tuple[Version, Future[None]]] = set()
        self.shelf = Shelf(self.versions, self._publish, self._retire)
        self._librarian = Librarian(
            settings.adapters.root,
            settings.staged_dir,
            self.shelf,
            self._stage,
            settle_s=settings.adapters.settle_s,
            claims=self.claims,
            guard=self.guard,
            listed=listed,
        )

    def open(self) -> dict[str, catalog.Entry]:
        """Judges and stages all there is, publishes the catalog, begins to watch."""
        staging.clean(self._settings.staged_dir)
        incoming.clean(self._settings.adapters.root)
        found = self._librarian.first_scan(self._scan)
        for line in found.badly_named:
            log.warning("adapter root: %s", line)
        listed = [self.stage_folder(lora_id, path) for lora_id, path in self.listed.items()]
        rooted = found.adapters.keys()
        # Of two of a name the listed one is served, whichever was there first.
        adapters = [one for name, one in found.adapters.items() if name not in self.listed] + listed
        for scanned in adapters:
            if scanned.path is None:
                log.warning("adapter %s refused: %s", scanned.entry.lora_id, scanned.entry.reason)
        self.shelf.update(adapters)
        for lora_id in rooted & self.listed.keys():
            log.warning("adapter %s: %s", lora_id, librarian.LISTED)
            self.shelf.remark(lora_id, librarian.LISTED)
        for digest in staging.digests(self._settings.staged_dir):
            # Left by a server that ended before it had retired them.
            self.discard(digest)
        self._librarian.start()
        return self.shelf.entries()

    @property
    def root_problem(self) -> str:
        """What is wrong with the adapter root as a whole; empty while nothing is."""
        return self._librarian.problem

    @property
    def sources(self) -> SourceSettings:
        """Where adapters may be fetched from."""
        return self._settings.sources

    def routes(self) -> dict[str, Route]:
        """All aliases as they stand."""
        return self.book.current.routes(self._settings.aliases)

    def decide(self, change: Callable[[Decisions], Decisions]) -> bool:
        """Writes an operator's decision down, then publishes it; whether anything changed.

        Raises:
            OSError: it could not be written.
        """
        changed = self.book.change(change)
        if changed:
            self.shelf.publish()
        return changed

    def close(self) -> None:
        """Ends the watching."""
        self._librarian.stop()

    def _scan(self) -> scan.ScanResult:
        root, staged = self._settings.adapters.root, self._settings.staged_dir
        limit = self._settings.adapters.max_file_bytes
        return scan.scan(root, staged, self._info.target, limit, signatures=self._signatures)

    def _stage(self, lora_id: str) -> Scanned:
        return self.stage_folder(lora_id, self._settings.adapters.root / lora_id)

    def stage_folder(self, lora_id: str, folder: Path) -> Scanned:
        """Judges and stages ``folder`` as ``lora_id``; never raises for what is in it."""
        limit = self._settings.adapters.max_file_bytes
        staged = self._settings.staged_dir
        target = self._info.target
        return scan.stage_folder(lora_id, folder, staged, target, limit, self._signatures)

    def offered(self) -> dict[str, str]:
        """The digest of each adapter that may be asked for, by lora_id."""
        disabled = self.book.current.disabled
        return {
            lora_id: entry.digest
            for lora_id, entry in self.shelf.entries().items()
            if entry.state is catalog.State.READY and lora_id not in disabled
        }

    def retiring(self) -> list[tuple[Version, Future[None]]]:
        """The versions that are leaving, each with what is done when it has left."""
        return list(self._retiring)

    def _publish(self, entries: dict[str, catalog.Entry]) -> None:
        pid = os.getpid()
        # A clock that is set back must not make a newer snapshot look older.
        self._generation = max(self._generation + 1, time.time_ns())
        decided = self.book.current
        snapshot = catalog.Snapshot(
            boot_id=self._boot_id,
            generation=self._generation,
            engine_pid=pid,
            engine_start=runtime.process_start(pid) or "",
            model_dir=self._info.model_dir,
            max_model_len=self._info.max_model_len,
            entries={name: _decided(entry, decided) for name, entry in entries.items()},
            aliases=self.routes(),
            max_lora_rank=self._info.target.max_rank,
        )
        catalog.publish(self._settings.run_dir, snapshot)

    def _retire(self, version: Version, replaced: bool) -> None:
        work = retire(
            version,
            self._engine,
            self.shelf,
            grace_s=lambda: (
                USE_WITHIN_S if replaced and self.shelf.has(version.lora_id) else _REMOVED_GRACE_S
            ),
            discard=self.discard,
        )
        leaving = (version, asyncio.run_coroutine_threadsafe(work, self._loop))
        self._retiring.add(leaving)
        leaving[1].add_done_callback(lambda _: self._retiring.discard(leaving))

    def discard(self, digest: str) -> None:
        """Removes the staged copy of a digest soon, unless a version needs it."""
        self._librarian.discard(digest, lambda: not self.versions.has_digest(digest))


def _decided(entry: catalog.Entry, decided: Decisions) -> catalog.Entry:
    """The entry as gates see it: what an operator has disabled is not ready."""
    if entry.lora_id not in decided.disabled or entry.state is not catalog.State.READY:
        return entry
    return dataclasses.replace(entry, state=catalog.State.DISABLED)


def signature_policy(settings: Settings) -> SignaturePolicy:
    """Which adapters must be signed, with the keys.

    Raises:
        SettingsError: the keys file cannot be used.
    """
    signing = settings.signing
    if signing.keys_file is None:
        return SignaturePolicy()
    try:
        keys = signing_keys.KeyFile(signing.keys_file)
    except signing_keys.SigningKeysError as error:
        raise SettingsError(f"signing.keys_file: {error}") from None
    return SignaturePolicy(signing.require, keys)
