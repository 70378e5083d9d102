"""The operator: adds, replaces and removes adapters while the load runs, by the admin commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtests import results
from loadtests.plan import Act
from loadtests.results import Change
from tools.admin.client import AdminClient, NotReached, Refused


class Changes:
    """Carries out acts while its block runs, and writes ``changes.jsonl``.

    Args:
        folder: of the results.
        acts: what to do, by time.
        client: the operator's.
        spares: the folder of markers that the server may add from.
        now: seconds since the start of the run.
    """

    def __init__(
        self,
        folder: Path,
        acts: Sequence[Act],
        client: AdminClient,
        spares: Path,
        now: Callable[[], float],
    ) -> None:
        self._folder, self._acts, self._client = folder, acts, client
        self._spares, self._now = spares, now
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def __enter__(self) -> Changes:
        if self._acts:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._acts:
            self._thread.join()

    def _run(self) -> None:
        with (self._folder / results.CHANGES).open("w", encoding="utf-8") as file:
            for act in self._acts:
                if self._stop.wait(max(0.0, act.at - self._now())):
                    return
                results.append(file, self._do(act))

    def _do(self, act: Act) -> Change:
        t, began, error = self._now(), time.monotonic(), None
        source = None if act.marker is None else str(self._spares / act.marker)
        try:
            found = self._client.call(act.what, lora_id=act.lora_id, source=source)
            if "job" in found:
                self._client.follow(found["job"], lambda _: None)
        except (Refused, NotReached) as problem:
            error = str(problem)
        return Change(
            t=round(t, 3),
            what=act.what,
            lora_id=act.lora_id,
            seconds=round(time.monotonic() - began, 3),
            error=error,
        )
