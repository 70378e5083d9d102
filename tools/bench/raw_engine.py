"""Raw ``AsyncLLM`` in a plain process: the program a user would write, for comparison.

``python -m tools.bench.raw_engine`` reads lines of JSON: first the engine's arguments, then loads
(``{"streams", "rounds", "adapter", "prompt", "tokens"}``), and answers each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any


async def _main() -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**json.loads(sys.stdin.readline())))
    numbers = itertools.count()

    async def one(load: dict[str, Any]) -> float:
        sampling = SamplingParams(
            temperature=0,
            max_tokens=load["tokens"],
            min_tokens=load["tokens"],
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        lora = LoRARequest("one", 1, load["adapter"]) if load["adapter"] else None
        began, first_s = time.perf_counter(), 0.0
        answers = engine.generate(
            load["prompt"], sampling, f"raw{next(numbers)}", lora_request=lora
        )
        async for _ in answers:
            first_s = first_s or time.perf_counter() - began
        return first_s

    async def stream(load: dict[str, Any]) -> list[float]:
        return [await one(load) for _ in range(load["rounds"])]

    _say({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        load = json.loads(line)
        began = time.perf_counter()
        found = await asyncio.gather(*(stream(load) for _ in range(load["streams"])))
        _say({"seconds": time.perf_counter() - began, "ttfts_s": list(itertools.chain(*found))})
    engine.shutdown()


def _say(answer: dict[str, Any]) -> None:
    print("RAW " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
