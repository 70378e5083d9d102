"""Reading beside the step: what is kept, what is forgotten, and how the front end hears of it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from python_backend.engine.board import PLACES, Board, Outcome
from python_backend.engine.prefetch import STASH, Prefetcher

LIMIT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Request:
    lora_int_id: int
    path: str = "good"


class Reader:
    """A disk that can be held, and a prefetcher before it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.paths: list[str] = []
        self.posted: list[tuple[int, int, Outcome]] = []
        self.said = threading.Semaphore(0)
        self.prefetcher = Prefetcher(self._read, self._post)

    def _read(self, request: Request) -> str:
        assert self.gate.wait(LIMIT_S)
        self.paths.append(request.path)
        if request.path == "bad":
            raise OSError("no such adapter")
        return f"model {request.lora_int_id}"

    def _post(self, place: int, int_id: int, outcome: Outcome) -> None:
        self.posted.append((place, int_id, outcome))
        self.said.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.said.acquire(timeout=LIMIT_S)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def empty(reader: Reader) -> bool:
    state = reader.prefetcher.state()
    return not state["stash"] and not state["reading"]


def test_one_read_for_a_load(reader: Reader) -> None:
    reader.prefetcher.start((Request(5),), 2)
    reader.wait()
    assert reader.posted == [(2, 5, Outcome.READ)]
    assert reader.prefetcher.state() == {"reads": 1, "stash": [5], "reading": []}
    assert reader.prefetcher.load(Request(5)) == "model 5"
    assert reader.prefetcher.state()["reads"] == 1
    assert empty(reader)
    # What was not read before is read when vLLM asks.
    assert reader.prefetcher.load(Request(5)) == "model 5"
    assert reader.prefetcher.state()["reads"] == 2


def test_it_returns_at_once(reader: Reader) -> None:
    reader.gate.clear()
    reader.prefetcher.start((Request(1),), 0)
    assert reader.prefetcher.state()["reading"] == [1]
    assert reader.posted == []
    reader.gate.set()
    reader.wait()


def test_a_failure_leaves_its_reason_and_nothing_else(reader: Reader) -> None:
    reader.prefetcher.start((Request(1, "bad"),), 0)
    reader.wait()
    assert reader.posted == [(0, 1, Outcome.FAILED)]
    assert empty(reader)
    assert reader.prefetcher.forget(1) == "OSError: no such adapter"
    assert reader.prefetcher.forget(1) == ""


def test_forgotten_while_read(reader: Reader) -> None:
    reader.gate.clear()
    reader.prefetcher.start((Request(1),), 0)
    reader.prefetcher.forget(1)
    # Wanted again before the first read is over: only the second one counts.
    reader.prefetcher.start((Request(1),), 3)
    reader.gate.set()
    reader.wait()
    for thread in threading.enumerate():
        if thread.name == "lora-read-1":
            thread.join(LIMIT_S)
    assert reader.posted == [(3, 1, Outcome.READ)]
    assert reader.prefetcher.take(1) == "model 1"
    assert empty(reader)


@pytest.mark.parametrize(
    "paths, outcome",
    [
        (("copy", "good"), Outcome.READ),
        (("bad", "good"), Outcome.READ),
        (("bad", "bad"), Outcome.FAILED),
    ],
)
def test_the_original_counts(reader: Reader, paths: tuple[str, ...], outcome: Outcome) -> None:
    reader.prefetcher.start(tuple(Request(1, path) for path in paths), 0)
    reader.wait()
    assert reader.posted == [(0, 1, outcome)]
    assert reader.paths == list(paths[:1] if paths[0] == "copy" else paths)


def test_what_nobody_fetches_is_bounded(reader: Reader) -> None:
    for int_id in range(1, STASH + 4):
        reader.prefetcher.start((Request(int_id),), 0)
        reader.wait()
    assert reader.prefetcher.state()["stash"] == list(range(4, STASH + 4))


def test_a_thread_that_cannot_begin_is_a_failure() -> None:
    posted: list[Outcome] = []
    said = threading.Event()

    def post(place: int, int_id: int, outcome: Outcome) -> None:
        posted.append(outcome)
        said.set()

    def no_device() -> None:
        raise RuntimeError("no device")

    read: Callable[[Request], str] = lambda request: "model"  # noqa: E731
    prefetcher = Prefetcher(read, post, no_device)
    prefetcher.start((Request(1),), 0)
    assert said.wait(LIMIT_S)
    assert posted == [Outcome.FAILED]
    assert prefetcher.forget(1) == "RuntimeError: no device"


def test_the_board_waits_for_every_worker(tmp_path: Path) -> None:
    front, worker = (Board(tmp_path / "board") for _ in range(2))
    assert front.outcome(2, 1, 7) is None
    worker.post(0, 1, 7, Outcome.READ)
    assert front.outcome(1, 1, 7) is Outcome.READ
    assert front.outcome(2, 1, 7) is None
    worker.post(1, 1, 7, Outcome.FAILED)
    assert front.outcome(2, 1, 7) is Outcome.FAILED
    # Neither another place nor another adapter.
    assert front.outcome(2, 0, 7) is None
    assert front.outcome(2, 1, 8) is None
    front.clear(2, 1)
    assert front.outcome(2, 1, 7) is None


def test_large_ids_and_all_places(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    largest = 2**31 - 1
    for worker in range(3):
        for place in range(PLACES):
            board.post(worker, place, largest - place, Outcome.READ)
    for place in range(PLACES):
        assert board.outcome(3, place, largest - place) is Outcome.READ
        assert board.outcome(4, place, largest - place) is None
