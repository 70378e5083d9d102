"""Runs one engine over one tiny model, in a process of its own: vLLM keeps global state.

``python -m tests.families.drive JOB RESULT``, both JSON files; see ``main``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from python_backend.adapters import staging
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.target import Target
from python_backend.engine import arguments
from python_backend.engine.async_llm import AsyncLLMEngine
from python_backend.engine.base import Job, Version
from python_backend.fusion.building import Builder
from python_backend.fusion.recipe import Recipe
from python_backend.messages import EngineRequest
from python_backend.ticket import Part

_MAX_FILE_BYTES = 1 << 26


def _stage(job: dict[str, Any], target: Target, work: Path) -> tuple[dict[str, Version], dict]:
    """The adapters that our validation lets through, and why the others are refused."""
    versions, refused = {}, {}
    for number, (name, folder) in enumerate(job["adapters"].items(), start=1):
        try:
            staged = staging.stage(Path(folder), work / "staged", target, _MAX_FILE_BYTES)
        except AdapterRejected as error:
            refused[name] = {"reason": error.reason_code, "sentence": error.sentence}
        else:
            versions[name] = Version(f"fin_{name}_v1", staged.digest, number, staged.path)
    return versions, refused


def _mixed(
    job: dict[str, Any], target: Target, versions: dict[str, Version], work: Path
) -> dict[str, Version]:
    """The mixtures, built as the server does it."""
    builder, found = Builder(target, work / "staged"), {}
    for number, (name, parts) in enumerate(job["mixtures"].items(), start=1000):
        chosen = [(versions[adapter], weight) for adapter, weight in parts]
        recipe = Recipe(tuple(Part(v.lora_id, v.digest, weight) for v, weight in chosen))
        plan = builder.plan([(version.path, weight) for version, weight in chosen])
        path = builder.write(plan, recipe.digest)
        found[name] = Version(recipe.expression, recipe.digest, number, path)
    return found


async def _answer(
    engine: AsyncLLMEngine, uid: str, ids: list[int], version: Version | None, tokens: int
) -> dict[str, Any]:
    """One prompt's greedy tokens, each with its log-probability."""
    sampling = {"temperature": 0.0, "max_tokens": tokens, "logprobs": 1, "ignore_eos": True}
    job = Job(uid, tuple(ids), EngineRequest(sampling), version, "salt")
    async for step in engine.generate(job):
        positions = json.loads(step.sequences[0].logprobs or "[]")
    best = [
        next((int(token), value["logprob"]) for token, value in p.items() if value["rank"] == 1)
        for p in positions
    ]
    return {"ids": [token for token, _ in best], "logprobs": [value for _, value in best]}


async def _run(job: dict[str, Any], work: Path) -> dict[str, Any]:
    engine = AsyncLLMEngine(arguments.engine_arguments(job["engine"], 8), work / "flag")
    try:
        info = await engine.start()
    except arguments.EngineStartError as error:
        return {"start_error": str(error)}
    versions, refused = _stage(job, info.target, work)
    names: dict[str, Version | None] = {"base": None, **versions}
    prompts, tokens = job["prompts"], job["tokens"]
    # Base and every adapter in one batch, more adapters than slots.
    together = await asyncio.gather(
        *[
            _answer(engine, f"t-{name}-{number}", ids, version, tokens)
            for number, ids in enumerate(prompts)
            for name, version in names.items()
        ]
    )
    mixed: dict[str, list[Any]] = {name: together[i :: len(names)] for i, name in enumerate(names)}
    # One after the other, twice round: each is switched out of its slot and in again.
    alone: dict[str, list[Any]] = {name: [] for name in names}
    for turn in range(2):
        for name, version in names.items():
            uid = f"a-{name}-{turn}"
            alone[name].append(await _answer(engine, uid, prompts[turn], version, tokens))
    # Out of the engine altogether, and read again.
    again: dict[str, Any] = {}
    for name, version in versions.items():
        await engine.unload(version.int_id)
        again[name] = await _answer(engine, f"r-{name}", prompts[0], version, tokens)
    fused: dict[str, list[Any]] = {}
    for name, version in _mixed(job, info.target, versions, work).items():
        fused[name] = [
            await _answer(engine, f"f-{name}-{number}", ids, version, tokens)
            for number, ids in enumerate(prompts)
        ]
        await engine.unload(version.int_id)
        again[name] = await _answer(engine, f"g-{name}", prompts[0], version, tokens)
    state = await engine.state()
    await engine.stop()
    return {
        "modules": {
            path: [shape.in_features, shape.out_features, shape.kind]
            for path, shape in info.target.modules.items()
        },
        "missing": info.missing,
        "refused": refused,
        "mixed": mixed,
        "alone": alone,
        "again": again,
        "fused": fused,
        "state": state,
    }


def main() -> None:
    """JOB: engine (arguments), adapters (name → folder), mixtures (name → [adapter, weight]…),
    prompts (token ids), tokens.
    """
    job_path, result_path = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.INFO)
    job = json.loads(job_path.read_text())
    arguments.prepare_process(job["engine"], 2, gpu=arguments.has_gpu())
    result = asyncio.run(_run(job, job_path.parent))
    result_path.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
