"""What `bench speed` compares: our server, raw ``AsyncLLM``, and vLLM's own server.

Each runs in processes of its own; the callers of both servers live in ours, so that the CPU time
of a contestant is the server's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton

from tools import layout
from tools.bench.figures import Window
from tools.bench.server import RunningServer, cpu_s, free_ports, text

_START_LIMIT_S = 300.0
_MODEL = "demo"


@dataclasses.dataclass(frozen=True)
class Load:
    """Closed loops: ``streams`` callers with ``rounds`` requests each, answers of ``tokens``."""

    streams: int
    rounds: int
    lora_id: str | None
    prompt: str
    tokens: int


@dataclasses.dataclass(frozen=True)
class Outcome(Window):
    """What a load gave."""

    ttfts_s: tuple[float, ...]


class Contestant(Protocol):
    """A started server or engine."""

    name: str

    async def run(self, load: Load) -> Outcome:
        """Carries a load and measures it."""


class Ours:
    """This project's server, through ``lora_generate``."""

    name = "ours"

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    async def run(self, load: Load) -> Outcome:
        """See ``Contestant``."""
        sampling = json.dumps(
            {
                "temperature": 0,
                "max_tokens": load.tokens,
                "min_tokens": load.tokens,
                "ignore_eos": True,
            }
        )
        inputs = [
            text("text_input", load.prompt),
            text("credential", self._server.keys["admin"]),
            text("sampling_parameters", sampling),
            _flag("stream"),
        ]
        if load.lora_id:
            inputs.append(text("lora_id", load.lora_id))

        async with triton.InferenceServerClient(self._server.grpc) as client:

            async def ask() -> float:
                async def once() -> AsyncIterator[dict[str, Any]]:
                    yield {"model_name": "lora_generate", "inputs": inputs}

                began, first_s = time.perf_counter(), 0.0
                async for _, error in client.stream_infer(once()):
                    if error is not None:
                        raise RuntimeError(str(error))
                    first_s = first_s or time.perf_counter() - began
                return first_s

            return await _timed(ask, load, self._server.cpu_s)


class VllmServe:
    """vLLM's OpenAI server, ``/v1/completions``."""

    name = "vllm serve"

    def __init__(self, port: int, pid: int) -> None:
        self._url, self._pid = f"http://127.0.0.1:{port}/v1/completions", pid

    async def run(self, load: Load) -> Outcome:
        """See ``Contestant``."""
        body = {
            "model": load.lora_id or _MODEL,
            "prompt": load.prompt,
            "temperature": 0,
            "max_tokens": load.tokens,
            "min_tokens": load.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask() -> float:
                began, first_s = time.perf_counter(), 0.0
                async with session.post(self._url, json=body) as answer:
                    answer.raise_for_status()
                    async for _ in answer.content.iter_any():
                        first_s = first_s or time.perf_counter() - began
                return first_s

            return await _timed(ask, load, lambda: cpu_s(self._pid))


class Raw:
    """``tools.bench.raw_engine``."""

    name = "raw AsyncLLM"

    def __init__(self, process: subprocess.Popen[str], adapters: Path) -> None:
        self._process, self._adapters = process, adapters

    async def run(self, load: Load) -> Outcome:
        """See ``Contestant``."""
        body = dataclasses.asdict(load)
        body["adapter"] = str(self._adapters / load.lora_id) if load.lora_id else None
        before = cpu_s(self._process.pid)
        found = await asyncio.to_thread(_exchange, self._process, body)
        spent = cpu_s(self._process.pid) - before
        tokens = load.streams * load.rounds * load.tokens
        return Outcome(tokens, found["seconds"], spent, tuple(found["ttfts_s"]))


async def _timed(
    ask: Callable[[], Awaitable[float]], load: Load, used_s: Callable[[], float]
) -> Outcome:
    async def stream() -> list[float]:
        return [await ask() for _ in range(load.rounds)]

    before, began = used_s(), time.perf_counter()
    found = await asyncio.gather(*(stream() for _ in range(load.streams)))
    seconds, spent = time.perf_counter() - began, used_s() - before
    tokens = load.streams * load.rounds * load.tokens
    return Outcome(tokens, seconds, spent, tuple(itertools.chain(*found)))


@contextlib.contextmanager
def raw(arguments: dict[str, Any], adapters: Path) -> Iterator[Raw]:
    """A plain process with ``AsyncLLM``."""
    command = [sys.executable, "-m", "tools.bench.raw_engine"]
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=layout.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_quiet(),
        start_new_session=True,
    )
    try:
        _exchange(process, arguments)
        yield Raw(process, adapters)
    finally:
        _end(process)


@contextlib.contextmanager
def vllm_serve(
    arguments: dict[str, Any], adapters: Path, lora_ids: tuple[str, ...], log: Path
) -> Iterator[VllmServe]:
    """``python -m vllm.entrypoints.openai.api_server`` on loopback; what it says goes to ``log``.

    Raises:
        RuntimeError: it does not become ready; the text holds what it said.
    """
    port = free_ports()[0]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", _MODEL]
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        command += [option] if value is True else [option, str(value)]
    command += ["--lora-modules", *(f"{name}={adapters / name}" for name in lora_ids)]
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=layout.ROOT,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        text=True,
        env=_quiet(),
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"vllm serve did not start: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield VllmServe(port, process.pid)
    finally:
        _end(process)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _exchange(process: subprocess.Popen[str], body: dict[str, Any]) -> dict[str, Any]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the raw engine has no pipes")
    process.stdin.write(json.dumps(body) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("RAW "):
            found: dict[str, Any] = json.loads(line[4:])
            return found
    raise RuntimeError("the raw engine has ended")


def _quiet() -> dict[str, str]:
    """Offline and quiet, and as vLLM's settings are by themselves otherwise."""
    more = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return {**os.environ, **more}


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def _flag(name: str) -> Any:
    tensor = triton.InferInput(name, [1], "BOOL")
    tensor.set_data_from_numpy(np.array([True]))
    return tensor
