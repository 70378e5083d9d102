from __future__ import annotations

from pathlib import Path

import pytest

from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.scan import Scanned
from python_backend.adapters.shelf import Released, Shelf
from python_backend.adapters.versions import Versions
from python_backend.engine.base import Version
from python_backend.errors import NotFound

A, B = "a" * 64, "b" * 64


class House:
    """A shelf with what it published and retired."""

    def __init__(self) -> None:
        self.versions = Versions()
        self.published: list[dict[str, Entry]] = []
        self.retired: list[tuple[Version, bool]] = []
        self.shelf = Shelf(
            self.versions, self.published.append, lambda v, r: self.retired.append((v, r))
        )


def ready(lora_id: str, digest: str) -> Scanned:
    return Scanned(Entry(lora_id, State.READY, digest, 8, 100), Path("/staged") / digest)


def refused(lora_id: str) -> Scanned:
    return Scanned(Entry(lora_id, State.FAILED, reason="truncated: copy it again."), None)


def test_new_adapters_are_published_together() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A), refused("fin_b_v1")])
    assert len(house.published) == 1
    assert house.published[0]["fin_a_v1"].state is State.READY
    assert house.published[0]["fin_b_v1"].reason == "truncated: copy it again."
    assert house.retired == []


def test_an_update_retires_the_version_before_it() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A)])
    house.shelf.update([ready("fin_a_v1", B)])
    (version, replaced) = house.retired[0]
    assert (version.digest, version.int_id, replaced) == (A, 1, True)
    assert house.published[-1]["fin_a_v1"].digest == B
    # Tickets for it are on their way: it still exists.
    assert house.versions.get("fin_a_v1", A) is version
    assert house.shelf.release(version) is Released.YES
    with pytest.raises(NotFound):
        house.versions.get("fin_a_v1", A)


def test_the_same_content_again_changes_nothing() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A)])
    house.shelf.update([ready("fin_a_v1", A)])
    assert house.retired == []
    assert house.versions.get("fin_a_v1", A).int_id == 1


def test_a_refused_update_leaves_the_version_in_service() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A)])
    house.shelf.update([refused("fin_a_v1")])
    entry = house.shelf.entries()["fin_a_v1"]
    assert (entry.state, entry.digest) == (State.READY, A)
    assert entry.reason == "the update was refused: truncated: copy it again."
    house.shelf.update([ready("fin_a_v1", B)])
    assert house.shelf.entries()["fin_a_v1"].reason == ""


def test_what_has_gone_is_taken_off_and_retired() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A), refused("fin_b_v1")])
    house.shelf.update([], gone=["fin_a_v1", "fin_b_v1", "fin_never_v1"])
    assert house.published[-1] == {}
    assert [(v.lora_id, replaced) for v, replaced in house.retired] == [("fin_a_v1", False)]


def test_a_version_in_use_is_not_released() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A)])
    house.shelf.update([], gone=["fin_a_v1"])
    version = house.retired[0][0]
    with house.versions.lease("fin_a_v1", A):
        assert house.shelf.release(version) is Released.IN_USE
    assert house.shelf.release(version) is Released.YES


def test_a_version_that_came_back_is_kept() -> None:
    house = House()
    for digest in (A, B, A):
        house.shelf.update([ready("fin_a_v1", digest)])
    first = house.retired[0][0]
    assert house.shelf.release(first) is Released.ON_OFFER
    assert house.versions.get("fin_a_v1", A) is first


def test_what_could_not_be_published_is_published_and_retired_later() -> None:
    house = House()
    house.shelf.update([ready("fin_a_v1", A)])
    full = True

    def publish(entries: dict[str, Entry]) -> None:
        if full:
            raise OSError(28, "No space left on device")
        house.published.append(entries)

    house.shelf._publish = publish
    with pytest.raises(OSError, match="space"):
        house.shelf.update([ready("fin_a_v1", B)])
    assert house.published[-1]["fin_a_v1"].digest == A
    assert house.retired == []
    with pytest.raises(OSError, match="space"):
        house.shelf.catch_up()
    full = False
    house.shelf.catch_up()
    assert house.published[-1]["fin_a_v1"].digest == B
    assert [version.digest for version, _ in house.retired] == [A]
    count = len(house.published)
    house.shelf.catch_up()
    assert len(house.published) == count
