"""What a worker says of itself, in a file that both sides map: no call, and no step to wait for.

One file per worker, written by the worker after each change and by its sampler, read by the front
end when it likes. A checksum tells a record that was being written while it was read.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from pathlib import Path

from python_backend import files

#: Room for slots, for adapters in the host cache, and for loads since the last look.
MAX_SLOTS, MAX_HOST, MAX_LOADS = 512, 8192, 64
#: A digest that is not known (yet).
UNKNOWN = bytes(32)

_FRAME = struct.Struct("<II")
_HEAD = struct.Struct("<QdQdQQddddIIII")
_SLOT = struct.Struct("<q32s")
_LOAD = struct.Struct("<QqdQ")
_ACTIVATION = struct.Struct("<Qd")
_ID = struct.Struct("<q")
_SIZE = (
    _FRAME.size
    + _HEAD.size
    + MAX_SLOTS * _SLOT.size
    + MAX_LOADS * (_LOAD.size + _ACTIVATION.size)
    + MAX_HOST * _ID.size
)


@dataclasses.dataclass(frozen=True)
class Load:
    """One adapter read into the host's memory; ``number`` counts all loads of the worker from 1.

    ``size`` is that of its weight file, bytes; 0 where it is not known.
    """

    number: int
    int_id: int
    seconds: float
    size: int = 0


@dataclasses.dataclass(frozen=True)
class WorkerRecord:
    """A worker's state.

    Counters since the worker's start: ``loads`` into host memory, ``activations`` (an adapter got
    a slot), ``evictions`` (which another one had held), and seconds. ``slots`` holds for each slot
    the adapter's id and the sha256 of the weight file that was really read for it (``UNKNOWN``
    where it is not known yet), None where it is empty. Fragmentation of the process's heap is a
    share; the device's memory is in bytes. What cannot be told is not a number.
    """

    loads: int = 0
    load_s: float = 0.0
    activations: int = 0
    activation_s: float = 0.0
    evictions: int = 0
    slot_bytes: int = 0
    heap_fragmentation: float = math.nan
    device_allocated: float = math.nan
    device_reserved: float = math.nan
    device_inactive: float = math.nan
    slots: tuple[tuple[int, bytes] | None, ...] = ()
    recent: tuple[Load, ...] = ()
    host: tuple[int, ...] = ()
    #: Numbers, from 1, and seconds of the last activations.
    recent_activations: tuple[tuple[int, float], ...] = ()

    def pack(self) -> bytes:
        """As bytes; what is beyond the room there is stays out."""
        slots, recent = self.slots[:MAX_SLOTS], self.recent[-MAX_LOADS:]
        host = self.host[-MAX_HOST:]
        activated = self.recent_activations[-MAX_LOADS:]
        head = _HEAD.pack(
            self.loads,
            self.load_s,
            self.activations,
            self.activation_s,
            self.evictions,
            self.slot_bytes,
            self.heap_fragmentation,
            self.device_allocated,
            self.device_reserved,
            self.device_inactive,
            len(slots),
            len(recent),
            len(host),
            len(activated),
        )
        parts = [head]
        parts += [_SLOT.pack(*(slot or (0, UNKNOWN))) for slot in slots]
        parts += [_LOAD.pack(load.number, load.int_id, load.seconds, load.size) for load in recent]
        parts += [_ACTIVATION.pack(*one) for one in activated]
        parts.append(struct.pack(f"<{len(host)}q", *host))
        return b"".join(parts)

    @classmethod
    def unpack(cls, body: bytes) -> WorkerRecord:
        """The record in ``body``, as ``pack`` made it."""
        *plain, slots, loads, host, activations = _HEAD.unpack_from(body)
        names = [field.name for field in dataclasses.fields(cls)]
        at = _HEAD.size
        found = _SLOT.iter_unpack(body[at : (at := at + slots * _SLOT.size)])
        recent = _LOAD.iter_unpack(body[at : (at := at + loads * _LOAD.size)])
        activated = _ACTIVATION.iter_unpack(body[at : (at := at + activations * _ACTIVATION.size)])
        return cls(
            **dict(zip(names, plain, strict=False)),
            slots=tuple(slot if slot[0] else None for slot in found),
            recent=tuple(Load(*load) for load in recent),
            host=struct.unpack_from(f"<{host}q", body, at),
            recent_activations=tuple(activated),
        )


class RecordFile:
    """The file; made if it is not there."""

    def __init__(self, path: Path) -> None:
        self._map = files.mapped(path, _SIZE)

    def write(self, record: WorkerRecord) -> None:
        """Replaces the record. One writer."""
        body = record.pack()
        self._map[: _FRAME.size + len(body)] = _FRAME.pack(zlib.crc32(body), len(body)) + body

    def read(self, attempts: int = 3) -> WorkerRecord | None:
        """The record; None before the first one, or while it changes all the time."""
        for _ in range(attempts):
            checksum, length = _FRAME.unpack_from(self._map)
            if not length or length > _SIZE - _FRAME.size:
                continue
            body = self._map[_FRAME.size : _FRAME.size + length]
            if zlib.crc32(body) == checksum:
                return WorkerRecord.unpack(body)
        return None


def path_of(run_dir: Path, worker: int) -> Path:
    """The file of worker number ``worker``."""
    return run_dir / f"worker-signals-{worker}"


def clear(run_dir: Path) -> None:
    """Removes what workers of an earlier engine have left."""
    for path in run_dir.glob("worker-signals-*"):
        path.unlink(missing_ok=True)
