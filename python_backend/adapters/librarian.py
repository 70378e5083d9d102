"""Keeps the shelf true to the adapter root while the server runs."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import watchfiles

from python_backend.adapters import scan, staging
from python_backend.adapters.claims import Claims
from python_backend.adapters.rejection import TRANSIENT
from python_backend.adapters.root_view import RootView
from python_backend.adapters.scan import Scanned
from python_backend.adapters.settling import Fingerprint, Settling
from python_backend.adapters.shelf import Shelf
from python_backend.adapters.staging_guard import StagingGuard

log = logging.getLogger(__name__)

#: How often the root is looked at without being told to, seconds: network file systems send no
#: events, and a lost event must not matter.
POLL_S = 5.0

#: Why a folder of the root is not served.
LISTED = "a folder of this name in the adapter root is not served: multi_lora.json names another."


class Librarian:
    """A thread that watches the root, has what changed judged and staged, and tells the shelf.

    Args:
        stage: judges and stages one folder by its lora_id; never raises.
        settle_s: how long a folder must be at rest before it is judged, seconds.
        claims: adapters that somebody else is changing are left alone meanwhile.
        guard: knows whether somebody else is staging.
        listed: adapters that lie elsewhere: the root's folders of their names are not served.
    """

    def __init__(
        self,
        root: Path,
        staged_root: Path,
        shelf: Shelf,
        stage: Callable[[str], Scanned],
        *,
        settle_s: float = 1.0,
        claims: Claims | None = None,
        guard: StagingGuard | None = None,
        listed: Iterable[str] = (),
    ) -> None:
        self._listed = frozenset(listed)
        self._guard = guard or StagingGuard()
        self._claims = Claims() if claims is None else claims
        self._gone: set[str] = set()
        self._view = RootView(root)
        self._root, self._staged_root, self._shelf, self._stage = root, staged_root, shelf, stage
        self._settle_s = settle_s
        self._settling = Settling(settle_s)
        self._discarded: queue.SimpleQueue[tuple[str, Callable[[], bool]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="librarian", daemon=True)

    def first_scan(self, target_scan: Callable[[], scan.ScanResult]) -> scan.ScanResult:
        """The scan before the server is ready; what it judged is not judged again.

        Fingerprints are taken before the scan, so that what changes meanwhile is seen as changed.
        """
        seen = self._view.first()
        result = target_scan()
        for lora_id, scanned in result.adapters.items():
            if lora_id in seen:
                self._remember(scanned, seen[lora_id])
        return result

    @property
    def problem(self) -> str:
        """What is wrong with the root as a whole; empty while nothing is."""
        return self._view.problem

    def _remember(self, scanned: Scanned, fingerprint: Fingerprint) -> None:
        self._settling.judged(scanned.entry.lora_id, fingerprint)
        if _transient(scanned):
            self._settling.again(scanned.entry.lora_id)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; an adapter being staged is finished first."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def discard(self, digest: str, unused: Callable[[], bool]) -> None:
        """Removes a staged copy soon, if ``unused`` still says so then.

        On the librarian's own thread, and not while anybody else stages: no staging can be about
        to use the copy again.
        """
        self._discarded.put((digest, unused))

    def _run(self) -> None:
        for _ in self._wake_ups():
            try:
                self._look()
                self._discard()
            except Exception:
                log.exception("the adapter root could not be looked at; trying again")

    def _wake_ups(self) -> Iterator[None]:
        """One item whenever it is time to look: after an event, or when something may be due."""
        step_s = min(self._settle_s, POLL_S) / 2 or 0.05
        looked_s, watched = float("-inf"), True
        self._unsettled = True
        while not self._stop.is_set():
            try:
                for events in watchfiles.watch(
                    self._root,
                    stop_event=self._stop,
                    rust_timeout=int(step_s * 1000),
                    yield_on_timeout=True,
                    debounce=100,
                    step=50,
                ):
                    watched = True
                    due = time.monotonic() - looked_s >= POLL_S
                    if events or due or self._unsettled or not self._discarded.empty():
                        looked_s = time.monotonic()
                        yield
            except (OSError, RuntimeError) as error:
                # No inotify (or no more watches), or the root itself is gone: look by the clock.
                if watched:
                    log.warning("the adapter root cannot be watched (%s); polling", error)
                watched = False
                self._stop.wait(1.0)
                yield

    def _look(self) -> None:
        self._shelf.catch_up()
        seen = self._view.look(anything_known=self._settling.known > 0)
        if seen is None:
            return
        changes = self._settling.observe(seen, time.monotonic())
        self._unsettled = changes.unsettled
        self._gone.update(changes.gone)
        if self._gone:
            self._take_gone()
        for lora_id in changes.settled:
            if lora_id in self._listed:
                self._settling.judged(lora_id, seen[lora_id])
                log.warning("adapter %s: %s", lora_id, LISTED)
                self._shelf.remark(lora_id, LISTED)
                continue
            with self._claims.attempt(lora_id) as claimed:
                if not claimed or not os.path.lexists(self._root / lora_id):
                    self._unsettled = True
                    continue
                self._judge(lora_id, seen[lora_id])

    def _take_gone(self) -> None:
        with contextlib.ExitStack() as claims:
            free = [
                lora_id
                for lora_id in sorted(self._gone)
                if claims.enter_context(self._claims.attempt(lora_id))
            ]
            # It may have been replaced since it was looked at: then it is new, not gone.
            gone = [name for name in free if not os.path.lexists(self._root / name)]
            for lora_id in self._listed & set(gone):
                self._shelf.remark(lora_id, "")
            gone = [lora_id for lora_id in gone if lora_id not in self._listed]
            if gone:
                log.info("adapters gone from the root: %s", ", ".join(gone))
                self._shelf.update((), gone)
            self._gone.difference_update(free)
        self._unsettled = self._unsettled or bool(self._gone)

    def _judge(self, lora_id: str, seen: Fingerprint) -> None:
        scanned = self._stage(lora_id)
        self._settling.judged(lora_id, seen)
        if _transient(scanned):
            self._settling.again(lora_id)
        log.info("adapter %s: %s %s", lora_id, scanned.entry.state, scanned.entry.reason)
        # Each at once: a large one must not keep the small ones before it waiting.
        self._shelf.update([scanned])

    def _discard(self) -> None:
        for _ in range(self._discarded.qsize()):
            digest, unused = self._discarded.get()
            hidden: list[Path] = []

            def hide(digest: str = digest, unused: Callable[[], bool] = unused) -> None:
                if unused():
                    with contextlib.suppress(FileNotFoundError):
                        hidden.append(staging.hide(self._staged_root / digest))  # noqa: B023

            if not self._guard.when_idle(hide):
                self._discarded.put((digest, unused))
            for folder in hidden:
                staging.discard(folder)


def _transient(scanned: Scanned) -> bool:
    """Whether what stood in the adapter's way may pass by itself."""
    return scanned.path is None and scanned.entry.reason.split(":", 1)[0] in TRANSIENT
