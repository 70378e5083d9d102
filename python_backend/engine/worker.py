"""What runs inside vLLM's worker: a worker extension, called through ``collective_rpc``.

vLLM appends this class to its Worker's bases, runs no ``__init__`` of it, and refuses any public
name that the Worker has already; hence the ``lora_`` prefix and the lazily made state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from python_backend.engine import orphans, private, trimming
from python_backend.engine.board import Board, Outcome
from python_backend.engine.cpu_wrapper import repair_cpu_kernels
from python_backend.engine.prefetch import Prefetcher
from python_backend.engine.watch import FailureFlag


class LoraWorkerExtension:
    """The methods that ``collective_rpc`` reaches, on top of vLLM's own."""

    def lora_install(self, flag_path: str, board_path: str) -> dict[str, Any]:
        """Finds vLLM's private parts, repairs the CPU kernels, guards the step. Idempotent.

        Args:
            flag_path, board_path: the files of the front end's ``FailureFlag`` and ``Board``.

        Returns:
            ``missing``: private names this vLLM lacks (what needs them was not installed);
            ``layers``: every layer that takes an adapter; ``renames``: prefix renames;
            ``refused``: layers that take none rightly, with the reason;
            ``slot_bytes``: bytes of all slots; ``per_module_scaling``: see ``Target``;
            ``on_cpu``; ``cpu_kernels``: whether repaired.
        """
        orphans.end_with_owner()
        internals = private.Internals.of(self)
        complete = not internals.missing
        if getattr(self, "_lora_guard", None) is None:
            self._lora_repaired = on_cpu(self) and repair_cpu_kernels(internals)
            flag, rank = FailureFlag(Path(flag_path)), int(getattr(self, "rank", 0))
            self._lora_guard = StepGuard(internals, lambda: flag.mark(rank)) if complete else None
            if complete:
                self._lora_reader = read_beside(self, internals, Board(Path(board_path)), rank)
        layers = internals.layers() if complete else []
        return {
            "missing": list(internals.missing),
            "layers": [(layer.name, layer.kind, dict(layer.parts)) for layer in layers],
            "renames": list(internals.renames()) if complete else [],
            "refused": internals.refusals() if complete else {},
            "slot_bytes": internals.slot_bytes() if complete else 0,
            "per_module_scaling": private.per_module_scaling(),
            "on_cpu": on_cpu(self),
            "cpu_kernels": self._lora_repaired,
        }

    def lora_state(self) -> dict[str, Any]:
        """What is where: ids in slots and host cache, ids that failed inside a step."""
        internals = private.Internals.of(self)
        guard: StepGuard | None = getattr(self, "_lora_guard", None)
        return {
            "slots": internals.slots(),
            "host": internals.host_cache(),
            "failed": dict(guard.failed) if guard else {},
            **(self._lora_reader.state() if guard else {}),
        }

    def lora_prefetch(self, name: str, int_id: int, paths: list[str], place: int) -> None:
        """Begins to read an adapter beside the step and returns at once.

        Args:
            paths: absolute folders that hold it, the one to be tried first first.
            place: where on the board the outcome is to be posted.
        """
        requests = tuple(private.lora_request(name, int_id, path) for path in paths)
        self._lora_reader.start(requests, place)

    def lora_host(self, int_id: int) -> bool:
        """Moves an adapter that was read into the host cache; it takes no slot.

        False if the cache is full or it is not there.
        """
        model = self._lora_reader.take(int_id)
        return model is not None and private.Internals.of(self).host(model)

    def lora_forget(self, int_id: int) -> str:
        """Drops what was read of an adapter; why that failed, if it did."""
        return self._lora_reader.forget(int_id)

    def lora_slow_reads(self, seconds: float) -> None:
        """For tests and benchmarks: every read of an adapter takes so much longer."""
        self._lora_reader.slow_s = seconds

    def lora_trim(self) -> None:
        """Begins to give unused memory back, beside the step, and returns at once."""
        trimming.begin(torch.device(self.device))  # type: ignore[attr-defined]

    def lora_heal_kv_cache(self) -> int:
        """Zeroes what is not finite in the KV cache, in place; returns how many values.

        Runs between steps. What is finite stays, so healthy requests go on.
        """
        cleaned = 0
        for cache in private.kv_caches(self):
            bad = ~torch.isfinite(cache)
            if count := int(bad.sum()):
                cache.masked_fill_(bad, 0)
                cleaned += count
        return cleaned


def on_cpu(worker: Any) -> bool:
    """Whether the worker computes on a CPU."""
    return bool(torch.device(worker.device).type == "cpu")


def read_beside(worker: Any, internals: private.Internals, board: Board, rank: int) -> Prefetcher:
    """Puts a ``Prefetcher`` in front of vLLM's own load; what is unloaded leaves it too."""
    manager, device = internals.worker_manager, torch.device(worker.device)

    def enter() -> None:
        if device.type == "cuda":
            # A thread begins on the first device; pinned memory belongs to a device's context.
            torch.cuda.set_device(device)

    def post(place: int, int_id: int, outcome: Outcome) -> None:
        board.post(rank, place, int_id, outcome)

    readers: list[Prefetcher] = []

    def in_front(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        readers.append(Prefetcher(read, post, enter))
        return readers[0].load

    internals.replace_load(in_front)
    (reader,) = readers
    remove = manager.remove_adapter

    def remove_adapter(int_id: int) -> Any:
        reader.forget(int_id)
        return remove(int_id)

    manager.remove_adapter = remove_adapter
    return reader


class StepGuard:
    """Keeps an adapter's failure out of the engine's step, where it would end the engine.

    Outside a step a failed load is undone and re-raised. Inside a step it is replaced by an
    adapter of zeros and remembered in ``failed``, whose requests the front end then fails: they
    are never answered as base.
    """

    def __init__(self, internals: private.Internals, report: Callable[[], None]) -> None:
        self.failed: dict[int, str] = {}
        self._report = report
        self._in_step = False
        self._internals = internals
        manager = internals.worker_manager
        self._add, self._apply = manager.add_adapter, manager.set_active_adapters
        manager.add_adapter = self._guarded_add
        manager.set_active_adapters = self._guarded_apply

    def _guarded_apply(self, requests: Any, mapping: Any) -> Any:
        self._in_step = True
        try:
            return self._apply(requests, mapping)
        finally:
            self._in_step = False

    def _guarded_add(self, request: Any) -> bool:
        try:
            return bool(self._add(request))
        except Exception as error:
            # vLLM registers an adapter before it has copied all of it: what is half written now
            # still holds the slot's previous occupant.
            self._internals.worker_manager.remove_adapter(request.lora_int_id)
            if not self._in_step:
                raise
            self.failed[request.lora_int_id] = type(error).__name__
            self._report()
            self._fill_with_zeros(request.lora_int_id)
            return True

    def _fill_with_zeros(self, int_id: int) -> None:
        manager = self._internals.model_manager
        modules = self._internals.worker_manager.embedding_modules
        manager.add_adapter(manager.create_dummy_lora(int_id, 8, modules))
        manager.activate_adapter(int_id)
