from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from python_backend.adapters import librarian
from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.librarian import LISTED, Librarian
from python_backend.adapters.scan import Scanned
from python_backend.adapters.shelf import Shelf
from python_backend.adapters.versions import Versions


class House:
    """A librarian over a real folder; an adapter is ready if it has a config, else refused."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.staged = tmp_path / "adapters", tmp_path / "staged"
        self.root.mkdir()
        self.staged.mkdir()
        self.stagings: list[str] = []
        self.shelf = Shelf(Versions(), lambda entries: None, lambda version, replaced: None)
        self.librarian = Librarian(self.root, self.staged, self.shelf, self.stage, settle_s=0.2)

    def stage(self, lora_id: str) -> Scanned:
        self.stagings.append(lora_id)
        try:
            text = (self.root / lora_id / "adapter_config.json").read_text()
        except OSError:
            return Scanned(Entry(lora_id, State.FAILED, reason="missing_config: none."), None)
        digest = text.strip() * 64
        return Scanned(Entry(lora_id, State.READY, digest), self.staged / digest)

    def write(self, lora_id: str, content: str) -> None:
        (self.root / lora_id).mkdir(parents=True, exist_ok=True)
        (self.root / lora_id / "adapter_config.json").write_text(content)

    def until(self, holds: Callable[[dict[str, Entry]], bool], limit_s: float = 20.0) -> None:
        end = time.monotonic() + limit_s
        while not holds(self.shelf.entries()):
            assert time.monotonic() < end, self.shelf.entries()
            time.sleep(0.02)


@pytest.fixture
def house(tmp_path: Path):  # type: ignore[no-untyped-def]
    house = House(tmp_path)
    house.librarian.start()
    yield house
    house.librarian.stop()


def test_folders_come_change_and_go(house: House) -> None:
    house.write("fin_a_v1", "a")
    house.until(lambda e: "fin_a_v1" in e and e["fin_a_v1"].digest == "a" * 64)
    house.write("fin_a_v1", "b")
    house.until(lambda e: e["fin_a_v1"].digest == "b" * 64)
    shutil.rmtree(house.root / "fin_a_v1")
    house.until(lambda e: e == {})
    assert house.stagings == ["fin_a_v1", "fin_a_v1"]


def test_a_broken_folder_does_not_block_the_others(house: House) -> None:
    (house.root / "fin_bad_v1").mkdir()
    house.write("fin_good_v1", "a")
    house.until(lambda e: len(e) == 2)
    entries = house.shelf.entries()
    assert entries["fin_bad_v1"].reason == "missing_config: none."
    assert entries["fin_good_v1"].state is State.READY


def until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_root_that_vanishes_takes_nothing_away(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(librarian, "POLL_S", 0.3)
    house.write("fin_a_v1", "a")
    house.until(lambda e: "fin_a_v1" in e)
    moved = house.root.with_name("moved")
    house.root.rename(moved)
    until(lambda: "cannot be listed" in house.librarian.problem)
    # As where a file system is not mounted any more: an empty folder of the name is there.
    house.root.mkdir()
    until(lambda: "another folder" in house.librarian.problem)
    assert house.shelf.entries()["fin_a_v1"].state is State.READY
    house.root.rmdir()
    moved.rename(house.root)
    until(lambda: not house.librarian.problem)
    assert house.stagings == ["fin_a_v1"]
    shutil.rmtree(house.root / "fin_a_v1")
    house.until(lambda e: e == {})


def test_another_root_with_adapters_is_the_root(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(librarian, "POLL_S", 0.3)
    house.write("fin_a_v1", "a")
    house.until(lambda e: "fin_a_v1" in e)
    house.root.rename(house.root.with_name("moved"))
    house.write("fin_b_v1", "b")
    house.until(lambda e: set(e) == {"fin_b_v1"})
    assert house.librarian.problem == ""


def test_badly_named_folders_are_not_looked_at(house: House) -> None:
    for name in ("Fin_a_v1", "fin_a", ".fin_a_v1", "fin_中_v1"):
        (house.root / name).mkdir()
    house.write("fin_a_v1", "a")
    house.until(lambda e: "fin_a_v1" in e)
    assert house.stagings == ["fin_a_v1"]


def test_a_copy_is_discarded_only_while_unused(house: House) -> None:
    for digest in ("a" * 64, "b" * 64):
        (house.staged / digest).mkdir(mode=0o555)
    house.librarian.discard("a" * 64, lambda: False)
    house.librarian.discard("b" * 64, lambda: True)
    house.until(lambda e: not (house.staged / ("b" * 64)).exists())
    assert (house.staged / ("a" * 64)).exists()


def test_what_is_listed_elsewhere_is_not_taken_from_the_root(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.librarian = Librarian(
        house.root, house.staged, house.shelf, house.stage, settle_s=0.2, listed=["fin_a_v1"]
    )
    house.shelf.update([Scanned(Entry("fin_a_v1", State.READY, "e" * 64), house.staged)])
    house.librarian.start()
    try:
        for _ in range(2):
            house.write("fin_a_v1", "a")
            house.until(lambda e: e["fin_a_v1"].reason == LISTED)
            house.write("fin_b_v1", "b")
            house.until(lambda e: "fin_b_v1" in e)
            shutil.rmtree(house.root / "fin_a_v1")
            house.until(lambda e: e["fin_a_v1"].reason == "")
            assert house.shelf.entries()["fin_a_v1"].digest == "e" * 64
            assert house.stagings == ["fin_b_v1"]
    finally:
        house.librarian.stop()
