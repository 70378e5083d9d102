"""Adapters come, change and go at an operator's word. Blocking: for worker threads.

Each method is called with the adapter's claim held (see ``adapters.claims``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from python_backend.adapters import incoming, source_uri, staging
from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.keeper import Keeper
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.scan import Scanned
from python_backend.adapters.source_uri import Remote
from python_backend.errors import AdapterFailed, InvalidArgument, NotFound, Unavailable
from python_backend.settings import AdapterSettings


@dataclasses.dataclass(frozen=True)
class Arrived:
    """A hidden folder in the root that was fetched; it need not be copied again."""

    folder: Path


class Changes:
    """What may happen to the adapter root.

    Args:
        settings: the root, and what may be copied into it.
    """

    def __init__(self, keeper: Keeper, settings: AdapterSettings) -> None:
        self._keeper, self._settings = keeper, settings

    def source(self, source: str, sha256: str = "") -> Path | Remote | None:
        """The folder that ``source`` names, here or elsewhere; None where nothing is named.

        Raises:
            InvalidArgument: the settings do not allow it, or ``sha256`` pins nothing.
        """
        if not source:
            if sha256:
                raise InvalidArgument("sha256", "pins a source, and none is named")
            return None
        if source_uri.is_remote(source):
            return source_uri.Rules(self._keeper.sources.allow).remote(source)
        return incoming.allowed_source(source, self._settings.add_from)

    def add(self, lora_id: str, source: Path | Arrived | None, sha256: str = "") -> str:
        """Makes an adapter known: ``added``, or ``exists`` for the same content.

        Without a source it is what lies in the adapter root already, judged now.

        Raises:
            AdapterFailed: it is refused; the reason is in the message.
            InvalidArgument: there is another one of that name.
            Unavailable: the root cannot be written.
        """
        with self._keeper.guard.staging():
            return self._add(lora_id, source, sha256)

    def _add(self, lora_id: str, source: Path | Arrived | None, sha256: str) -> str:
        self._check_free(lora_id)
        before = self._keeper.shelf.entries().get(lora_id)
        if source is None:
            scanned = self._keeper.stage_folder(lora_id, self._root / lora_id)
            if not os.path.lexists(self._root / lora_id):
                raise AdapterFailed("there is no folder of that name in the adapter root.")
            self._keeper.shelf.update([scanned])
            return _outcome(before, _good(scanned), "exists", "added")
        with self._copied(source, sha256) as copy:
            scanned = _good(self._keeper.stage_folder(lora_id, copy))
            if before is not None and before.digest == scanned.entry.digest:
                return "exists"
            if before is not None or os.path.lexists(self._root / lora_id):
                raise InvalidArgument(
                    "lora_id", "there is another adapter of that name; use update"
                )
            self._install(lora_id, copy, scanned)
        return "added"

    def update(self, lora_id: str, source: Path | Arrived | None, sha256: str = "") -> str:
        """Replaces an adapter: ``updated``, or ``unchanged`` for the same content.

        A version that is refused leaves the one before it in service.

        Raises:
            NotFound: there is none to replace.
            AdapterFailed, Unavailable: as ``add``.
        """
        self._check_free(lora_id)
        before = self._keeper.shelf.entries().get(lora_id)
        if before is None:
            raise NotFound
        if source is None:
            raise InvalidArgument("source", "update needs it")
        with self._keeper.guard.staging(), self._copied(source, sha256) as copy:
            scanned = _good(self._keeper.stage_folder(lora_id, copy))
            outcome = _outcome(before, scanned, "unchanged", "updated")
            if outcome == "updated":
                self._install(lora_id, copy, scanned)
        return outcome

    def remove(self, lora_id: str) -> Path | None:
        """Takes an adapter off the shelf and out of the root; the hidden folder to discard.

        Raises:
            NotFound: there is none.
            Unavailable: the root cannot be written; nothing has changed.
        """
        self._check_free(lora_id)
        final = self._root / lora_id
        known = lora_id in self._keeper.shelf.entries()
        if not known and not os.path.lexists(final):
            raise NotFound
        with root_errors():
            hidden = incoming.take(final)
        self._keeper.shelf.update((), [lora_id])
        self._keeper.book.change(lambda decided: decided.forget(lora_id))
        self._keeper.versions.usage.forget(lora_id)
        return hidden

    @property
    def _root(self) -> Path:
        return self._settings.root

    def _check_free(self, lora_id: str) -> None:
        if lora_id in self._keeper.listed:
            raise InvalidArgument("lora_id", "listed in multi_lora.json, which is fixed until stop")

    @contextlib.contextmanager
    def _copied(self, source: Path | Arrived, sha256: str) -> Iterator[Path]:
        settings = self._settings
        with root_errors(), contextlib.ExitStack() as stack:
            if isinstance(source, Arrived):
                copy = source.folder
            else:
                limit = settings.max_file_bytes
                copied = incoming.copied(source, self._root, settings.add_from, limit)
                copy = stack.enter_context(copied)
            if sha256 and not staging.is_pinned(copy, sha256, settings.max_file_bytes):
                raise AdapterFailed("the adapter is not the one that sha256 pins.")
            yield copy

    def _install(self, lora_id: str, copy: Path, scanned: Scanned) -> None:
        incoming.put(copy, self._root / lora_id)
        self._keeper.shelf.update([scanned])


@contextlib.contextmanager
def root_errors() -> Iterator[None]:
    """A root that cannot be written as an error of ours; its path is nobody's business."""
    try:
        yield
    except AdapterRejected as error:
        raise AdapterFailed(error.text) from None
    except OSError as error:
        problem = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"the adapter root cannot be written: {problem}.") from None


def _good(scanned: Scanned) -> Scanned:
    if scanned.path is None:
        raise AdapterFailed(scanned.entry.reason)
    return scanned


def _outcome(before: Entry | None, scanned: Scanned, same: str, changed: str) -> str:
    unchanged = (
        before is not None
        and before.state is State.READY
        and before.digest == scanned.entry.digest
        and not before.reason
    )
    return same if unchanged else changed
