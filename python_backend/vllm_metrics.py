"""The ``vllm:*`` metrics of Triton's official vLLM backend: same names, kinds, texts, buckets."""

from __future__ import annotations

from python_backend.metrics import Family

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
TIME_TO_FIRST_TOKEN = "vllm:time_to_first_token_seconds"  # noqa: S105 - no secret
TIME_PER_OUTPUT_TOKEN = "vllm:time_per_output_token_seconds"  # noqa: S105 - no secret
REQUEST_LATENCY = "vllm:e2e_request_latency_seconds"
REQUEST_PROMPT_TOKENS = "vllm:request_prompt_tokens"
REQUEST_GENERATION_TOKENS = "vllm:request_generation_tokens"
REQUEST_N = "vllm:request_params_n"

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08),
    *(0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_OUTPUT_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST_S = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_N = (1.0, 2.0, 5.0, 10.0, 20.0)


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to ``limit``."""
    series = (digit * 10.0**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return tuple(value for value in series if value <= limit)


def families(max_model_len: int) -> tuple[Family, ...]:
    """The families of an engine whose requests have at most ``max_model_len`` tokens."""
    tokens = one_two_five(max_model_len)
    prefilled, generated = (
        "Number of prefill tokens processed.",
        "Number of generation tokens processed.",
    )
    return (
        Family(PROMPT_TOKENS, "counter", prefilled),
        Family(GENERATION_TOKENS, "counter", generated),
        Family(
            TIME_TO_FIRST_TOKEN,
            "histogram",
            "Histogram of time to first token in seconds.",
            buckets=_FIRST_TOKEN_S,
        ),
        Family(
            TIME_PER_OUTPUT_TOKEN,
            "histogram",
            "Histogram of time per output token in seconds.",
            buckets=_OUTPUT_TOKEN_S,
        ),
        Family(
            REQUEST_LATENCY,
            "histogram",
            "Histogram of end to end request latency in seconds.",
            buckets=_REQUEST_S,
        ),
        Family(REQUEST_PROMPT_TOKENS, "histogram", prefilled, buckets=tokens),
        Family(REQUEST_GENERATION_TOKENS, "histogram", generated, buckets=tokens),
        Family(REQUEST_N, "histogram", "Histogram of the n request parameter.", buckets=_N),
    )
