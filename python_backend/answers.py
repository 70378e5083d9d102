"""From the engine's steps to answers."""

from __future__ import annotations

import dataclasses
import json

from python_backend.engine.base import Job, Step
from python_backend.messages import Answer, EngineRequest, Sequence


def with_logprobs(request: EngineRequest) -> EngineRequest:
    """vLLM adds up log-probabilities only where some are asked for; 0 is the chosen token's own.

    Without them the cumulative one would be NaN, which no JSON parser takes from ``/generate``.
    """
    if "cumulative_logprob" not in request.returns or "logprobs" in request.sampling:
        return request
    return dataclasses.replace(request, sampling={**request.sampling, "logprobs": 0})


@dataclasses.dataclass(frozen=True)
class Frame:
    """What every answer to a request carries: ``prefix`` stands before the text of each sequence,
    ``served`` is what ran, and ``fusion`` the account of a mixture, empty for none."""

    prefix: str
    served: str
    fusion: str = ""


def answer(step: Step, job: Job, frame: Frame) -> Answer:
    """The answer that a step of ``job`` makes."""
    count = int(job.request.sampling.get("n", 1))
    sequences = [step.sequences.get(index, Sequence()) for index in range(count)]
    if frame.prefix:
        sequences = [dataclasses.replace(s, text=frame.prefix + s.text) for s in sequences]
    return Answer(
        tuple(sequences), step.num_input_tokens, frame.served, job.uid, step.finished, frame.fusion
    )


def joined(earlier: Answer, later: Answer) -> Answer:
    """Two answers of one stream as one: what each sequence has gained in both."""
    sequences = zip(earlier.sequences, later.sequences, strict=True)
    return dataclasses.replace(later, sequences=tuple(_joined(*pair) for pair in sequences))


def _joined(earlier: Sequence, later: Sequence) -> Sequence:
    cumulative, logprobs = later.cumulative_logprob, later.logprobs
    if earlier.logprobs is not None and logprobs is not None:
        logprobs = json.dumps([*json.loads(earlier.logprobs), *json.loads(logprobs)])
    return Sequence(
        text=earlier.text + later.text,
        num_tokens=earlier.num_tokens + later.num_tokens,
        finish_reason=later.finish_reason or earlier.finish_reason,
        # One that has not moved since has nothing to tell.
        cumulative_logprob=earlier.cumulative_logprob if cumulative is None else cumulative,
        logprobs=earlier.logprobs if logprobs is None else logprobs,
    )
