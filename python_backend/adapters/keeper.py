"""The adapters' side of the engine process: scan, watch, publish, retire."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from python_backend import runtime
from python_backend.adapters import catalog, scan, staging
from python_backend.adapters.librarian import Librarian
from python_backend.adapters.retirement import retire
from python_backend.adapters.scan import Scanned
from python_backend.adapters.shelf import Shelf
from python_backend.adapters.versions import Versions
from python_backend.engine.base import Engine, EngineInfo, Version
from python_backend.settings import Settings
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
        self._boot_id, self._listed = boot_id, listed
        self.versions = Versions()
        self._shelf = Shelf(self.versions, self._publish, self._retire)
        self._librarian = Librarian(
            settings.adapters.root,
            settings.staged_dir,
            self._shelf,
            self._stage,
            settle_s=settings.adapters.settle_s,
        )

    def open(self) -> dict[str, catalog.Entry]:
        """Judges and stages all there is, publishes the catalog, begins to watch."""
        staging.clean(self._settings.staged_dir)
        found = self._librarian.first_scan(self._scan)
        for line in found.badly_named:
            log.warning("adapter root: %s", line)
        listed = [self._stage_folder(lora_id, path) for lora_id, path in self._listed.items()]
        adapters = [*found.adapters.values(), *listed]
        for scanned in adapters:
            if scanned.path is None:
                log.warning("adapter %s refused: %s", scanned.entry.lora_id, scanned.entry.reason)
        self._shelf.update(adapters)
        self._librarian.start()
        return self._shelf.entries()

    def close(self) -> None:
        """Ends the watching."""
        self._librarian.stop()

    def _scan(self) -> scan.ScanResult:
        root, staged = self._settings.adapters.root, self._settings.staged_dir
        return scan.scan(root, staged, self._info.target, self._settings.adapters.max_file_bytes)

    def _stage(self, lora_id: str) -> Scanned:
        return self._stage_folder(lora_id, self._settings.adapters.root / lora_id)

    def _stage_folder(self, lora_id: str, folder: Path) -> Scanned:
        limit = self._settings.adapters.max_file_bytes
        staged = self._settings.staged_dir
        return scan.stage_folder(lora_id, folder, staged, self._info.target, limit)

    def _publish(self, entries: dict[str, catalog.Entry]) -> None:
        pid = os.getpid()
        snapshot = catalog.Snapshot(
            boot_id=self._boot_id,
            generation=time.time_ns(),
            engine_pid=pid,
            engine_start=runtime.process_start(pid) or "",
            model_dir=self._info.model_dir,
            max_model_len=self._info.max_model_len,
            entries=entries,
        )
        catalog.publish(self._settings.run_dir, snapshot)

    def _retire(self, version: Version, replaced: bool) -> None:
        work = retire(
            version,
            self._engine,
            self._shelf,
            grace_s=USE_WITHIN_S if replaced else _REMOVED_GRACE_S,
            discard=self._discard,
        )
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def _discard(self, digest: str) -> None:
        self._librarian.discard(digest, lambda: not self.versions.has_digest(digest))
