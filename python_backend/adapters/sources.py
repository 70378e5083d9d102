"""Fetches an adapter from a store or a web server into a folder: whole, of one version, or not.

Only the files that are served are fetched, by their names: no listing is needed, and what else lies
there (optimizer states, pickles of a training run) stays where it is.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from python_backend.adapters import oms, shards, signing
from python_backend.adapters.peft_config import CONFIG_FILE
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.shards import INDEX_FILE
from python_backend.adapters.signing import BUNDLE_FILE, SIGNATURE_FILE
from python_backend.adapters.source_http import HttpSource
from python_backend.adapters.source_problem import Interrupted, Problem, SourceFailed, failed
from python_backend.adapters.source_stores import StoreSource
from python_backend.adapters.source_stream import Source, Stamp
from python_backend.adapters.source_uri import Remote, Rules
from python_backend.adapters.source_watch import Watch
from python_backend.adapters.weights import WEIGHTS_FILE
from python_backend.source_settings import CredentialsError, SourceSettings, read_credentials

#: Bytes received, and how many of the file under way there are in all (None: nobody knows).
Progress = Callable[[int, int | None], None]

#: Tries without a byte more than before, and the pause before the second, seconds; it doubles.
MAX_TRIES, PAUSE_S = 5, 0.2


def fetch(
    uri: str,
    into: Path,
    settings: SourceSettings,
    progress: Progress,
    cancel: threading.Event,
) -> None:
    """Fetches the adapter at ``uri`` into the folder ``into``, which is empty. Blocks.

    A cut connection is taken up where it broke, if the back end can prove that the file is still
    the same; all files are looked at again at the end, so that no two versions are mixed.

    Raises:
        InvalidArgument: the settings do not allow it.
        SourceFailed: with the reason; what has arrived so far is the caller's to remove.
        OSError: ``into`` cannot be written.
    """
    rules = Rules(settings.allow)
    remote = rules.remote(uri)
    watch = Watch(settings.deadline_s, cancel)
    with contextlib.closing(_source(remote, rules, settings, watch)) as source:
        _Fetch(source, into, settings.max_bytes, progress, watch).all()


def _source(remote: Remote, rules: Rules, settings: SourceSettings, watch: Watch) -> Source:
    try:
        credentials = read_credentials(settings.credentials_file)
    except CredentialsError as error:
        raise SourceFailed(
            Problem.CREDENTIALS, f"sources.credentials_file cannot be used: {error}"
        ) from None
    if remote.scheme in ("http", "https"):
        return HttpSource(remote, rules, credentials.https, watch)
    return StoreSource(remote, credentials, watch)


class _Fetch:
    """One adapter on its way."""

    def __init__(
        self, source: Source, into: Path, max_bytes: int, progress: Progress, watch: Watch
    ) -> None:
        self._source, self._into, self._max_bytes = source, into, max_bytes
        self._progress, self._watch = progress, watch
        self._seen: dict[str, Stamp] = {}
        #: Bytes of the files that are complete.
        self._done = 0

    def all(self) -> None:
        """Every file that is served, or signed."""
        self._file(CONFIG_FILE)
        if (missing := self._missing(WEIGHTS_FILE)) is not None:
            if self._missing(INDEX_FILE) is not None:
                raise missing
            for name in sorted(set(self._index().values())):
                self._file(name)
        for kind, signed in ((SIGNATURE_FILE, _signed), (BUNDLE_FILE, _published)):
            if self._missing(kind) is not None:
                continue
            for name in signed((self._into / kind).read_bytes()):
                if name not in self._seen:
                    self._file(name)
        for name, stamp in self._seen.items():
            if self._again(lambda name=name: self._source.stamp(name)) != stamp:  # type: ignore[misc]
                raise failed(Problem.CHANGED, name)

    def _index(self) -> dict[str, str]:
        return shards.parse_index((self._into / INDEX_FILE).read_bytes())

    def _missing(self, name: str) -> SourceFailed | None:
        """Fetches a file that may be missing, and why it is: 403 is what a store says that does
        not let us list."""
        try:
            self._file(name)
        except SourceFailed as error:
            if name in self._seen or error.problem not in (Problem.NOT_FOUND, Problem.FORBIDDEN):
                raise
            (self._into / name).unlink(missing_ok=True)
            return error
        return None

    def _file(self, name: str) -> None:
        with open(self._into / name, "xb") as file:
            best, tries = 0, 0
            while True:
                try:
                    self._receive(name, file)
                    break
                except Interrupted:
                    tries = 1 if file.tell() > best else tries + 1
                    best = max(best, file.tell())
                    self._pause(name, tries)
            self._done += file.tell()
            file.flush()
            os.fsync(file.fileno())

    def _pause(self, name: str, tries: int) -> None:
        if tries >= MAX_TRIES:
            raise SourceFailed(
                Problem.CUT_OFF, f"{name} breaks off, or its server does not answer; try again"
            )
        self._watch.pause(PAUSE_S * 2 ** (tries - 1))

    def _again(self, work: Callable[[], Stamp]) -> Stamp:
        for tries in range(1, MAX_TRIES + 1):
            try:
                return work()
            except Interrupted:
                self._pause("the source", tries)
        raise AssertionError  # _pause has raised

    def _receive(self, name: str, file: BinaryIO) -> None:
        """What is missing of the file."""
        with contextlib.closing(
            self._source.open(name, file.tell(), self._seen.get(name))
        ) as stream:
            stamp = self._seen.setdefault(name, stream.stamp)
            if stream.offset > file.tell():
                raise failed(Problem.CHANGED, name)
            file.seek(stream.offset)
            file.truncate()
            if stamp.size is not None:
                self._check_size(stamp.size)
            while block := stream.read():
                self._watch.check()
                self._check_size(file.tell() + len(block))
                file.write(block)
                self._progress(self._done + file.tell(), stamp.size)
        if stamp.size is not None and file.tell() != stamp.size:
            if file.tell() > stamp.size:
                raise failed(Problem.CHANGED, name)
            raise Interrupted

    def _check_size(self, size: int) -> None:
        if self._done + size > self._max_bytes:
            raise SourceFailed(
                Problem.TOO_LARGE,
                f"more than {self._max_bytes} bytes; raise sources.max_bytes if it is meant",
            )


def _signed(data: bytes) -> list[str]:
    """The files that ``adapter.sig.json`` names; a bad one is refused where it is judged."""
    with contextlib.suppress(AdapterRejected):
        return [file.name for file in signing.read(data).files]
    return []


def _published(data: bytes) -> list[str]:
    """As ``_signed``, for ``model.sig``."""
    with contextlib.suppress(AdapterRejected):
        return sorted(oms.read(data).files)
    return []
