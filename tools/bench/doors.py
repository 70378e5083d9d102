"""What each door adds to a direct call of the engine, one client, one token, side by side.

Starts a server of its own with the demo. Every round calls each way once, in turn, so that a
drifting machine touches all of them alike. Also shows start-up and memory of each process.
"""

from __future__ import annotations

import json
import queue
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton

from tools import layout
from tools.bench.scenario import Case, Options, Result
from tools.bench.server import RunningServer, running, text

#: What gate and ensemble together may add at one client, milliseconds.
ADDED_BOUND_MS = 1.0
_ROUNDS = 200
_PROMPT = "The capital of France is"
_SAMPLING = json.dumps({"temperature": 0, "max_tokens": 1})


class _Caller:
    """The ways to the engine, each a call that returns when its answer is there."""

    def __init__(self, server: RunningServer) -> None:
        self._client = triton.InferenceServerClient(server.grpc)
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        self._inputs = [
            text("text_input", _PROMPT),
            text("credential", server.keys["admin"]),
            text("sampling_parameters", _SAMPLING),
        ]
        self._decision: list[Any] = []

    def close(self) -> None:
        self._client.close()

    def gate(self) -> None:
        answer = self._client.infer("lora_gate", self._inputs)
        self._decision = [
            text(name, answer.as_numpy(name)[0].decode())
            for name in ("prompt", "request", "ticket")
        ]

    def engine(self) -> None:
        self._stream("vllm_lora", self._decision)

    def ensemble(self) -> None:
        self._stream("lora_generate", self._inputs)

    def lora_stream(self) -> None:
        self._stream("lora_stream", self._inputs)

    def lora_infer(self) -> None:
        self._client.infer("lora_infer", self._inputs)

    def _stream(self, model: str, inputs: list[Any]) -> None:
        self._client.async_stream_infer(model, inputs)
        _, error = self._answers.get(timeout=60)
        if error is not None:
            raise RuntimeError(f"{model}: {error}")


def run(options: Options) -> Result:
    """Measures; ``options.rounds`` beyond 200 are not needed and not made."""
    rounds = min(options.rounds, _ROUNDS)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(layout.ROOT / ".demo", Path(folder)) as server,
    ):
        took = _measure(_Caller(server), rounds)
        _report(server)
    engine = statistics.median(took["engine"])
    added = (statistics.median(took["ensemble"]) - engine) / 1e3
    cases = tuple(_case(name, times) for name, times in took.items())
    differences = tuple(
        _case(f"{name} − engine", [t - engine for t in times])
        for name, times in took.items()
        if name not in ("gate", "engine")
    )
    return Result(
        "doors",
        cases + differences,
        {f"ensemble adds {added:.2f} ms p50, at most {ADDED_BOUND_MS} ms": added <= ADDED_BOUND_MS},
    )


def _measure(caller: _Caller, rounds: int) -> dict[str, list[float]]:
    # The engine needs the gate's ticket of its own round, so the gate comes first.
    ways: list[Callable[[], None]] = [
        caller.gate, caller.engine, caller.ensemble, caller.lora_stream, caller.lora_infer,
    ]  # fmt: skip
    took: dict[str, list[float]] = {way.__name__: [] for way in ways}
    try:
        for number in range(rounds + 20):
            for way in ways:
                began = time.perf_counter_ns()
                way()
                if number >= 20:
                    took[way.__name__].append((time.perf_counter_ns() - began) / 1e3)
    finally:
        caller.close()
    return took


def _case(name: str, times_us: list[float]) -> Case:
    ordered = sorted(times_us)
    return Case(
        name,
        len(ordered),
        p50_us=round(ordered[len(ordered) // 2], 1),
        p99_us=round(ordered[len(ordered) * 99 // 100], 1),
        mean_us=round(statistics.fmean(ordered), 1),
    )


def _report(server: RunningServer) -> None:
    print(f"start to ready: {server.start_s:.1f} s; {server.ready_line()}")
    for name, mib in server.memory_mib():
        print(f"{mib:8.0f} MiB  {name}")
