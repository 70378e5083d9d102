"""Our jobs and versions as vLLM's objects, and its outputs as our steps."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from python_backend.adapters.target import ModuleShape, Target
from python_backend.engine.base import Job, Step, Version
from python_backend.errors import InvalidArgument
from python_backend.messages import Sequence

log = logging.getLogger(__name__)


def lora_request(version: Version) -> Any:
    """The version as vLLM's ``LoRARequest``."""
    from vllm.lora.request import LoRARequest

    # Absolute: vLLM takes a relative path that does not exist for a name on the Hub.
    return LoRARequest(version.name, version.int_id, str(Path(version.path).absolute()))


def sampling_params(job: Job) -> Any:
    """The job's ``SamplingParams``; streaming asks for deltas, the rest for the end alone.

    Raises:
        InvalidArgument: vLLM refuses a value that our own table let through.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    fields = dict(job.request.sampling)
    kind = RequestOutputKind.DELTA if job.request.stream else RequestOutputKind.FINAL_ONLY
    try:
        if (guide := fields.pop("structured_outputs", None)) is not None:
            fields["structured_outputs"] = StructuredOutputsParams(**guide)
        if (bias := fields.pop("logit_bias", None)) is not None:
            fields["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        return SamplingParams(**fields, output_kind=kind)
    except (ValueError, TypeError) as error:
        log.info("request %s: sampling refused: %s", job.uid, error)
        field = getattr(error, "parameter", None) or "sampling_parameters"
        raise InvalidArgument(str(field), "the engine refuses this value") from error


def refused(job: Job, error: BaseException) -> InvalidArgument:
    """What vLLM will not take; its text may repeat the prompt and stays in the log."""
    log.info("request %s refused by the engine: %s", job.uid, error)
    return InvalidArgument("sampling_parameters", "the engine refuses these values")


def check_token_ids(job: Job, vocabulary: int) -> None:
    """Refuses token ids that the model does not have.

    vLLM 0.24 checks them late or not at all, and an id beyond the logits then writes outside them
    (on a GPU that ends the engine).

    Raises:
        InvalidArgument: names the field.
    """
    for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        ids = job.request.sampling.get(field) or ()
        if any(int(token) >= vocabulary for token in ids):
            raise InvalidArgument(field, f"holds a token id of {vocabulary} or above")


def step(output: Any, num_input_tokens: int) -> Step:
    """A ``RequestOutput`` (of deltas, or the final one) as a step."""
    sequences = {
        int(part.index): Sequence(
            text=part.text,
            num_tokens=len(part.token_ids),
            finish_reason=part.finish_reason,
            cumulative_logprob=part.cumulative_logprob,
            logprobs=None if part.logprobs is None else _logprobs_json(part.logprobs),
        )
        for part in output.outputs
    }
    cached = output.num_cached_tokens or 0
    return Step(sequences, num_input_tokens, cached, bool(output.finished))


def _logprobs_json(positions: Any) -> str:
    """The official backend's form: one object per position, token id to its log-probability."""
    return json.dumps(
        [
            {
                str(token): {
                    "logprob": value.logprob,
                    "rank": value.rank,
                    "decoded_token": value.decoded_token,
                }
                for token, value in position.items()
            }
            for position in positions
        ]
    )


def target_of_workers(workers: list[dict[str, Any]], max_rank: int) -> Target:
    """The adapter target that the layers of all workers make (``lora_install``'s answers).

    Tensor parallel workers have the same layers, pipeline parallel ones a part each.
    """
    modules: dict[str, ModuleShape] = {}
    for name, kind, parts in (layer for found in workers for layer in found["layers"]):
        parent = name.rsplit(".", 1)[0] + "." if "." in name else ""
        for part, (in_features, out_features) in parts.items():
            shape = ModuleShape(in_features, out_features, kind)
            modules[parent + part] = shape
    prefixes = tuple((old, new) for old, new in workers[0]["renames"])
    refused = {name: why for found in workers for name, why in found["refused"].items()}
    return Target(modules, int(max_rank), prefixes, refused=refused)


def target_of_config(model: str, max_rank: int) -> Target:
    """The adapter target by the Hugging Face model itself, built without weights.

    For a vLLM whose own layers cannot be looked at: every linear layer by its checkpoint name.
    What vLLM does not take of them, it refuses at ``add_lora``.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    modules = {
        name: ModuleShape(module.in_features, module.out_features, "linear")
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    return Target(modules, max_rank)
