"""What the worker counts and publishes, with managers that behave as vLLM's do."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine import observe, record
from python_backend.engine.private import Internals
from python_backend.engine.record import UNKNOWN, Load, RecordFile, WorkerRecord


class Models:
    """The slots: least recently activated goes first."""

    def __init__(self, slots: int) -> None:
        self.lora_index_to_id: list[int | None] = [None] * slots
        self.order: OrderedDict[int, None] = OrderedDict()
        self.broken = False

    def list_adapters(self) -> dict[int, None]:
        return dict(self.order)

    def activate_adapter(self, int_id: int) -> bool:
        if self.broken:
            raise RuntimeError("no")
        if int_id in self.lora_index_to_id:
            return False
        if None not in self.lora_index_to_id:
            oldest = next(i for i in self.order if i in self.lora_index_to_id)
            self.lora_index_to_id[self.lora_index_to_id.index(oldest)] = None
        self.lora_index_to_id[self.lora_index_to_id.index(None)] = int_id
        self.order[int_id] = None
        return True


def rig(path: Path, slots: int = 2) -> tuple[observe.Observer, Any, Models, RecordFile]:
    models = Models(slots)

    def load(request: Any) -> str:
        if request.lora_path == "bad":
            raise ValueError("bad")
        return f"model {request.lora_int_id}"

    workers = SimpleNamespace(_load_adapter=load)
    observer = observe.Observer(Internals(workers, models, ()), RecordFile(path))
    observer.wrap()
    return observer, workers, models, RecordFile(path)


def request(int_id: int, path: str = "nowhere") -> Any:
    return SimpleNamespace(lora_int_id=int_id, lora_path=path)


def test_loads_activations_and_evictions_are_counted(tmp_path: Path) -> None:
    _, workers, models, file = rig(tmp_path / "r")
    assert file.read() is None
    assert workers._load_adapter(request(7)) == "model 7"
    for int_id in (7, 8, 7, 9, 9):
        models.activate_adapter(int_id)
    found = file.read()
    assert found is not None
    assert (found.loads, found.activations, found.evictions) == (1, 3, 1)
    assert found.slots == ((9, UNKNOWN), (8, UNKNOWN))
    assert [(load.number, load.int_id, load.size) for load in found.recent] == [(1, 7, 0)]
    assert [number for number, _ in found.recent_activations] == [1, 2, 3]
    assert found.load_s >= 0 <= found.activation_s
    assert found.host == (7, 8, 9)


def test_a_switch_is_a_slot_that_gets_another_adapter(tmp_path: Path) -> None:
    _, _, models, file = rig(tmp_path / "r")

    def switches() -> int:
        found = file.read()
        assert found is not None
        return found.evictions

    for int_id in (1, 2):
        models.activate_adapter(int_id)
    assert switches() == 0
    # Out of the host's cache, and of its slot with it; then the same one again, then another.
    models.lora_index_to_id[0] = None
    models.activate_adapter(1)
    assert switches() == 0
    models.lora_index_to_id[0] = None
    models.activate_adapter(3)
    assert switches() == 1


def test_failures_pass_through_and_are_not_counted(tmp_path: Path) -> None:
    _, workers, models, file = rig(tmp_path / "r")
    with pytest.raises(ValueError, match="bad"):
        workers._load_adapter(request(1, "bad"))
    models.broken = True
    with pytest.raises(RuntimeError, match="no"):
        models.activate_adapter(1)
    found = file.read()
    assert found is None or (found.loads, found.evictions) == (0, 0)


def test_a_record_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    observer, workers, models, _ = rig(tmp_path / "r")

    def broken(record: WorkerRecord) -> None:
        raise OSError("no")

    observer._file.write = broken  # type: ignore[method-assign]
    assert workers._load_adapter(request(1)) == "model 1"
    assert models.activate_adapter(1)


def test_the_digest_is_that_of_the_bytes_that_were_read(tmp_path: Path) -> None:
    observer, workers, models, file = rig(tmp_path / "r")
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights of another")
    workers._load_adapter(request(3, str(folder)))
    models.activate_adapter(3)
    observer.hash_one(3, str(folder))
    found = file.read()
    assert found is not None
    assert found.recent[0].size == len(b"weights of another")
    assert found.slots[0] == (3, hashlib.sha256(b"weights of another").digest())
    observer.hash_one(4, str(tmp_path / "gone"))


def test_memory() -> None:
    assert 0 <= observe.heap_fragmentation() <= 1
    assert all(math.isnan(value) for value in observe.device_memory())


ids = st.integers(1, 2**31 - 1)
_loads = st.builds(Load, st.integers(0, 2**40), ids, st.floats(0, 100), st.integers(0, 2**40))


@given(
    st.lists(st.one_of(st.none(), st.tuples(ids, st.binary(min_size=32, max_size=32)))),
    st.lists(_loads, max_size=64),
    st.lists(ids, max_size=50),
    st.lists(st.tuples(st.integers(0, 2**40), st.floats(0, 100)), max_size=64),
)
def test_what_is_written_is_read(slots: Any, recent: Any, host: Any, activated: Any) -> None:
    whole = WorkerRecord(
        *(1, 2.5, 3, 4.5, 5, 6, 0.5, 1.0, 2.0, 3.0),
        slots=tuple(slots),
        recent=tuple(recent),
        host=tuple(host),
        recent_activations=tuple(activated),
    )
    assert WorkerRecord.unpack(whole.pack()) == whole


def test_a_record_that_is_being_written_is_never_read_by_halves(tmp_path: Path) -> None:
    writer, reader = RecordFile(tmp_path / "r"), RecordFile(tmp_path / "r")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            writer.write(WorkerRecord(loads=number, slots=((number, UNKNOWN),) * 40))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2000):
            found = reader.read()
            assert found is None or all(slot == (found.loads, UNKNOWN) for slot in found.slots)
    finally:
        stop.set()
        thread.join()


def test_nonsense_in_the_file_is_no_record(tmp_path: Path) -> None:
    path = record.path_of(tmp_path, 0)
    file = RecordFile(path)
    with path.open("r+b") as raw:
        raw.write(b"\xff" * 100)
    assert file.read() is None
