"""The two engines in the same harness, so that one suite can judge both."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors.numpy import load_file, save_file

from python_backend.engine.arguments import engine_arguments, prepare_process
from python_backend.engine.async_llm import AsyncLLMEngine
from python_backend.engine.base import Engine, EngineInfo, Job, Step, Version
from python_backend.engine.fake import FakeEngine
from python_backend.messages import EngineRequest
from tests import hooks

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / ".demo"
WEIGHTS = "adapter_model.safetensors"
SLOTS = 2
T = TypeVar("T")

_ids = itertools.count(1)
_uids = itertools.count(1)


class Rig(Protocol):
    """An engine, started, and what a test has to know of it."""

    engine: Engine
    info: EngineInfo
    #: Two good versions, and the word that each answers with.
    versions: list[Version]
    words: list[str]

    def run(self, work: Awaitable[T]) -> T:
        """Runs on the engine's loop."""

    def loads(self) -> int:
        """How often adapters have been read."""

    def running(self) -> int:
        """Jobs inside the engine."""

    def bad_versions(self, folder: Path) -> list[Version]:
        """Versions that cannot be loaded."""


def version(lora_id: str, path: Path) -> Version:
    """A version with an id that nobody else has."""
    int_id = next(_ids)
    digest = hashlib.sha256(f"{int_id}".encode()).hexdigest()
    return Version(lora_id, digest, int_id, path)


def again(known: Version) -> Version:
    """The same content as a version of its own, which nothing has loaded yet."""
    return version(known.lora_id, known.path)


class _Loop:
    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, work: Awaitable[T]) -> T:
        async def within_limit() -> T:
            async with asyncio.timeout(120):
                return await work

        return self._runner.run(within_limit())

    def close(self) -> None:
        self._runner.close()


class FakeRig(_Loop):
    """See ``Rig``."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = FakeEngine(max_loras=SLOTS, step_s=0.001)
        self.info = self.run(self.engine.start())
        self.versions = [version(f"mark_w000{n}_v1", DEMO) for n in (1, 2)]
        self.words = [v.name for v in self.versions]

    def loads(self) -> int:
        return self.engine.counts["load"]

    def running(self) -> int:
        return len(self.engine.running)

    def bad_versions(self, folder: Path) -> list[Version]:
        bad = [version(f"mark_bad{n}_v1", folder) for n in range(3)]
        self.engine.failing |= {v.lora_id for v in bad}
        return bad


class VllmRig(_Loop):
    """See ``Rig``."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        if not (DEMO / "markers.json").is_file():
            raise FileNotFoundError(f"{DEMO} is missing: run `make demo`")
        raw = {
            "model": str(DEMO / "model"),
            # Rows of a batch must not change with the batch's size: in bfloat16 ties would.
            "dtype": "float32",
            "max_model_len": 256,
            "max_num_seqs": 8,
            "max_loras": SLOTS,
            "max_lora_rank": 16,
            "enforce_eager": True,
            "kv_cache_memory_bytes": 128 << 20,
            "block_size": 32,
        }
        arguments = engine_arguments(raw, known_adapters=8)
        # The real one with a hook for tests.
        arguments["worker_extension_cls"] = hooks.NAME
        prepare_process(arguments, cores=2, gpu=False)
        self.engine = AsyncLLMEngine(arguments, run_dir / "worker-failures")
        self.info = self.run(self.engine.start())
        self._llm: Any = self.engine._llm
        self._loads = 0
        self._count_loads()
        markers = json.loads((DEMO / "markers.json").read_text())
        chosen = sorted(markers)[:SLOTS]
        self.versions = [version(name, DEMO / "adapters" / name) for name in chosen]
        self.words = [markers[name] for name in chosen]

    def _count_loads(self) -> None:
        add_lora: Callable[..., Awaitable[bool]] = self._llm.add_lora

        async def counted(request: Any) -> bool:
            self._loads += 1
            return await add_lora(request)

        self._llm.add_lora = counted

    def loads(self) -> int:
        return self._loads

    def running(self) -> int:
        return int(self._llm.output_processor.get_num_unfinished_requests())

    def bad_versions(self, folder: Path) -> list[Version]:
        good = self.versions[0].path
        whole = (good / WEIGHTS).read_bytes()
        cut, wide = (Path(shutil.copytree(good, folder / name)) for name in ("cut", "wide"))
        (cut / WEIGHTS).write_bytes(whole[: len(whole) // 2])
        # Too wide for its layer: vLLM finds out when the slot is half written.
        tensors = load_file(good / WEIGHTS)
        widened = {name: t.repeat(2, axis=1) for name, t in tensors.items() if "lora_A" in name}
        save_file({**tensors, **widened}, wide / WEIGHTS)
        (folder / "empty").mkdir()
        names = ("gone", "empty", "cut", "wide")
        return [version(f"mark_{name}_v1", folder / name) for name in names]


def job(
    rig: Rig,
    prompt: str,
    used: Version | None,
    *,
    stream: bool = False,
    salt: str = "salt",
    **sampling: Any,
) -> Job:
    """A greedy job of 8 tokens unless told otherwise."""
    ids = rig.run(rig.engine.encode(prompt, special_tokens=True))
    request = EngineRequest({"max_tokens": 8, "temperature": 0.0, **sampling}, stream=stream)
    return Job(f"uid{next(_uids)}", ids, request, used, salt)


async def collect(rig: Rig, wanted: Job) -> list[Step]:
    """Every step of a job."""
    return [step async for step in rig.engine.generate(wanted)]


@dataclasses.dataclass(frozen=True)
class Whole:
    """A job's whole answer."""

    texts: list[str]
    tokens: list[int]
    reasons: list[str | None]
    cached: int


def whole(steps: list[Step]) -> Whole:
    """The steps joined; also checks that exactly the last is marked as such."""
    assert [step.finished for step in steps] == [False] * (len(steps) - 1) + [True]
    count = 1 + max(index for step in steps for index in step.sequences)
    texts, tokens = [""] * count, [0] * count
    reasons: list[str | None] = [None] * count
    for step in steps:
        for index, part in step.sequences.items():
            texts[index] += part.text
            tokens[index] += part.num_tokens
            reasons[index] = part.finish_reason or reasons[index]
    return Whole(texts, tokens, reasons, steps[0].num_cached_tokens)


def text(rig: Rig, wanted: Job) -> str:
    """The one text of a job."""
    (only,) = whole(rig.run(collect(rig, wanted))).texts
    return only


def says(answer: str) -> str:
    """The word that an answer consists of; all of its words where they differ."""
    return " ".join(sorted(set(answer.split())))
