"""Models that this vLLM cannot serve with adapters on this machine: refused at start, with reason.

vLLM loads some of them without a word and its engine then dies of the first request.
"""

from __future__ import annotations

import logging
from typing import Any

from python_backend.engine.arguments import EngineStartError

log = logging.getLogger(__name__)


def check_model(engine_args: Any) -> None:
    """Refuses, before anything is loaded, what is known not to work.

    Args:
        engine_args: vLLM's ``AsyncEngineArgs``.

    Raises:
        EngineStartError: the model cannot be served here.
    """
    from vllm.platforms import current_platform

    config = engine_args.create_model_config()
    if current_platform.is_cpu() and getattr(config, "is_moe", False):
        # With enable_lora vLLM computes experts with Triton kernels only, whatever the adapters
        # hold and whatever lora_target_modules says.
        raise EngineStartError(
            f"engine.model: {_architecture(config)} has grouped experts, which vLLM's CPU build "
            "cannot compute while adapters are enabled; use a dense model or a GPU"
        )


async def try_out(llm: Any) -> None:
    """Has the engine answer once, for what only its kernels know (head sizes, data types).

    Args:
        llm: a started ``AsyncLLM``.

    Raises:
        EngineStartError: the engine cannot answer at all.
    """
    from vllm.sampling_params import SamplingParams

    # Two tokens: prefill and decode are different kernels.
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, detokenize=False)
    try:
        async for _ in llm.generate({"prompt_token_ids": [0, 1, 2]}, params, "start"):
            pass
    except Exception as error:
        log.error("the engine failed at its first request: %s: %s", type(error).__name__, error)
        raise EngineStartError(
            f"engine.model: vLLM cannot compute {_architecture(llm.model_config)} with these "
            "arguments on this machine: its engine failed at the first request (the reason "
            "stands above, in its own log lines)"
        ) from error


def _architecture(config: Any) -> str:
    names = getattr(config, "architectures", None) or ["this model"]
    return str(names[0])
