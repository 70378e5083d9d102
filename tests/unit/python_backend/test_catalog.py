from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from python_backend import runtime
from python_backend.adapters.catalog import Entry, Snapshot, SnapshotReader, State, publish
from python_backend.errors import Unavailable


@pytest.fixture
def snapshot() -> Snapshot:
    start = runtime.process_start(os.getpid())
    assert start is not None
    entries = {
        f"fin_a{number}_v1": Entry(f"fin_a{number}_v1", state, "d" * 64, 8, 100, "why")
        for number, state in enumerate(State)
    }
    return Snapshot("boot", 1, os.getpid(), start, "model", 512, entries)


def test_json_round_trip(snapshot: Snapshot) -> None:
    again = Snapshot.from_json(snapshot.to_json())
    assert again == snapshot
    assert all(isinstance(entry.state, State) for entry in again.entries.values())


def test_only_ready_is_ready(snapshot: Snapshot) -> None:
    ready = [name for name in snapshot.entries if snapshot.ready(name)]
    assert ready == ["fin_a1_v1"]
    assert snapshot.ready("fin_none_v1") is None


def test_a_reader_sees_what_is_published(tmp_path: Path, snapshot: Snapshot) -> None:
    reader = SnapshotReader(tmp_path, "boot", recheck_s=0.2)
    with pytest.raises(Unavailable):
        reader.current(0.0)
    publish(tmp_path, snapshot)
    with pytest.raises(Unavailable):
        reader.current(0.1)
    assert reader.current(0.3) == snapshot
    newer = dataclasses.replace(snapshot, generation=2)
    publish(tmp_path, newer)
    assert reader.current(0.4).generation == 1
    assert reader.current(0.6) == newer
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.json"]


@pytest.mark.parametrize(
    "change",
    [{"boot_id": "other"}, {"engine_pid": 2**22 + 1}, {"engine_start": "0"}],
    ids=lambda change: next(iter(change)),
)
def test_a_snapshot_of_what_has_gone_does_not_count(
    tmp_path: Path, snapshot: Snapshot, change: dict[str, object]
) -> None:
    reader = SnapshotReader(tmp_path, "boot")
    publish(tmp_path, snapshot)
    assert reader.current(0.0) == snapshot
    publish(tmp_path, dataclasses.replace(snapshot, **change))  # type: ignore[arg-type]
    with pytest.raises(Unavailable) as error:
        reader.current(1.0)
    assert error.value.retry_after == 5
    publish(tmp_path, snapshot)
    assert reader.current(2.0) == snapshot


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"entries": {"a": {"state": "odd"}}}'])
def test_a_file_that_is_no_snapshot(tmp_path: Path, snapshot: Snapshot, text: str) -> None:
    reader = SnapshotReader(tmp_path, "boot")
    publish(tmp_path, snapshot)
    reader.current(0.0)
    (tmp_path / "catalog.json").write_text(text)
    with pytest.raises(Unavailable):
        reader.current(1.0)


def test_a_failed_publish_leaves_the_old_one_whole(tmp_path: Path, snapshot: Snapshot) -> None:
    publish(tmp_path, snapshot)
    broken = dataclasses.replace(snapshot, model_dir=b"no json")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        publish(tmp_path, broken)
    assert SnapshotReader(tmp_path, "boot").current(0.0) == snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.json"]
