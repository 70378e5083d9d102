"""Remote adapters on their way into the root, beside everything else that operators do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from python_backend.adapters import incoming, sources
from python_backend.adapters.source_uri import Remote
from python_backend.admin.changes import Arrived, root_errors
from python_backend.admin.jobs import Job
from python_backend.source_settings import SourceSettings

#: Adapters that are fetched at once; threads of their own, because a slow source must hold up
#: nothing else.
_THREADS = 4
_MIB = 1 << 20


class Fetching:
    """Fetches into hidden folders of the root.

    Args:
        root: the adapter root.
        settings: from where, how much and how long.
    """

    def __init__(self, root: Path, settings: SourceSettings) -> None:
        self._root, self._settings = root, settings
        #: Of each fetch under way; set when nobody wants it any more.
        self._cancels: set[threading.Event] = set()
        self._threads = ThreadPoolExecutor(_THREADS, "fetch")

    @contextlib.asynccontextmanager
    async def arrived(
        self, source: Path | Remote | None, job: Job
    ) -> AsyncIterator[Path | Arrived | None]:
        """``source`` itself if it lies here, else what was fetched, removed behind the block.

        Raises:
            SourceFailed: it could not be fetched.
            Unavailable: the root cannot be written.
        """
        if not isinstance(source, Remote):
            yield source
            return
        cancel = threading.Event()
        work = self._threads.submit(self._fetch, source, job, cancel)
        self._cancels.add(cancel)
        try:
            yield Arrived(await asyncio.wrap_future(work))
        finally:
            self._cancels.discard(cancel)
            cancel.set()
            # Whoever stopped waiting for it may have done so before it ended.
            work.add_done_callback(_discard)

    def _fetch(self, source: Remote, job: Job, cancel: threading.Event) -> Path:
        def progress(received: int, size: int | None) -> None:
            of = "" if size is None else f" of {size / _MIB:.1f}"
            job.step = f"fetching: {received / _MIB:.1f}{of} MiB"

        job.step = "fetching"
        with root_errors(), incoming.arriving(self._root) as folder:
            sources.fetch(source.uri, folder, self._settings, progress, cancel)
        return folder

    def stop(self) -> None:
        """Gives up what is under way; nobody waits for it."""
        for cancel in self._cancels:
            cancel.set()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _discard(work: Future[Path]) -> None:
    if not work.cancelled() and work.exception() is None:
        incoming.discard(work.result())
