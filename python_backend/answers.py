"""From the engine's steps to answers."""

from __future__ import annotations

import dataclasses

from python_backend.engine.base import Step
from python_backend.messages import Answer, EngineRequest, Sequence


def with_logprobs(request: EngineRequest) -> EngineRequest:
    """vLLM adds up log-probabilities only where some are asked for; 0 is the chosen token's own.

    Without them the cumulative one would be NaN, which no JSON parser takes from ``/generate``.
    """
    if "cumulative_logprob" not in request.returns or "logprobs" in request.sampling:
        return request
    return dataclasses.replace(request, sampling={**request.sampling, "logprobs": 0})


def answer(step: Step, request: EngineRequest, prefix: str, served: str, uid: str) -> Answer:
    """The answer that a step makes, with ``prefix`` before the text of each sequence."""
    count = int(request.sampling.get("n", 1))
    sequences = [step.sequences.get(index, Sequence()) for index in range(count)]
    if prefix:
        sequences = [dataclasses.replace(s, text=prefix + s.text) for s in sequences]
    return Answer(tuple(sequences), step.num_input_tokens, served, uid, step.finished)
