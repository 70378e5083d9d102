"""What travels between callers, gate, doors and engine: tensor tables and plain classes.

The tables are the contract of the models; a test compares every ``config.pbtxt`` with them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

DType = Literal["STRING", "BOOL", "FP32", "UINT32"]


# Made once: json.dumps with options makes an encoder at every call.
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: name, Triton dtype without its ``TYPE_`` prefix, dims."""

    name: str
    dtype: DType
    dims: tuple[int, ...] = (1,)
    optional: bool = True


#: ``return_*`` switches of the official backend and the output each one asks for.
RETURN_SWITCHES: dict[str, str] = {
    "return_finish_reason": "finish_reason",
    "return_cumulative_logprob": "cumulative_logprob",
    "return_logprobs": "logprobs",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}

#: Inputs of every public generation model, all optional.
GENERATION_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("text_input", "STRING"),
    TensorSpec("messages", "STRING"),
    TensorSpec("lora_id", "STRING"),
    TensorSpec("fusion", "STRING"),
    TensorSpec("credential", "STRING"),
    TensorSpec("stream", "BOOL"),
    TensorSpec("sampling_parameters", "STRING"),
    TensorSpec("exclude_input_in_output", "BOOL"),
    *(TensorSpec(name, "BOOL") for name in RETURN_SWITCHES),
)

GENERATION_OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("text_output", "STRING", (-1,)),
    TensorSpec("finish_reason", "STRING", (-1,)),
    TensorSpec("cumulative_logprob", "FP32", (-1,)),
    TensorSpec("logprobs", "STRING", (-1,)),
    TensorSpec("num_input_tokens", "UINT32"),
    TensorSpec("num_output_tokens", "UINT32", (-1,)),
    TensorSpec("lora_served", "STRING"),
    TensorSpec("request_uid", "STRING"),
)

#: ``fusion_served`` is a JSON object: mode, expression, weights, the base model's share.
FUSION_OUTPUTS: tuple[TensorSpec, ...] = (
    *GENERATION_OUTPUTS,
    TensorSpec("fusion_served", "STRING"),
)

#: ``forwarded`` carries a door's own request parameters as a JSON object: a BLS request can hold
#: only bool, int and str parameters, and a float must not be lost on the way.
GATE_INPUTS: tuple[TensorSpec, ...] = (*GENERATION_INPUTS, TensorSpec("forwarded", "STRING"))

GATE_OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("prompt", "STRING"),
    TensorSpec("request", "STRING"),
    TensorSpec("ticket", "STRING"),
    TensorSpec("cancel_ticket", "STRING"),
)

#: ``early_accept`` is set by the BLS doors alone; no ensemble maps it.
ENGINE_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("prompt", "STRING", optional=False),
    TensorSpec("request", "STRING", optional=False),
    TensorSpec("ticket", "STRING", optional=False),
    TensorSpec("early_accept", "BOOL"),
)

#: For the BLS doors alone: ``fusion_served``, sent where adapters are mixed; ``final`` marks the
#: last response, since a door cannot see Triton's own flag; ``error`` is an error's message, since
#: Triton's own error never reaches a door that has had a first response.
ENGINE_OUTPUTS: tuple[TensorSpec, ...] = (
    *FUSION_OUTPUTS,
    TensorSpec("final", "BOOL"),
    TensorSpec("error", "STRING"),
)


#: ``command`` and ``result`` are JSON objects (see ``admin.commands``).
ADMIN_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("command", "STRING", optional=False),
    TensorSpec("credential", "STRING"),
)

ADMIN_OUTPUTS: tuple[TensorSpec, ...] = (TensorSpec("result", "STRING"),)


@dataclasses.dataclass(frozen=True)
class RawRequest:
    """A caller's request as it came over the wire; nothing in it is trusted.

    ``None`` means that the tensor was not sent. ``parameters`` are Triton's request parameters
    (forwarded headers among them), ``timeout_us`` Triton's own request timeout, 0 if none.
    """

    text_input: bytes | None = None
    messages: bytes | None = None
    lora_id: bytes | None = None
    fusion: bytes | None = None
    credential: bytes | None = None
    stream: bool | None = None
    sampling_parameters: bytes | None = None
    exclude_input_in_output: bool | None = None
    returns: frozenset[str] = frozenset()
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    timeout_us: int = 0
    #: Whether the door the request came through can send more than one response.
    can_stream: bool = True


@dataclasses.dataclass(frozen=True)
class EngineRequest:
    """What the engine is told, in canonical form; the ticket covers its JSON.

    ``sampling`` holds vLLM's ``SamplingParams`` fields by name, capped and of the right types;
    ``returns`` the outputs asked for by ``return_*`` switches.
    """

    sampling: dict[str, Any]
    stream: bool = False
    prepend_prompt: bool = True
    #: Whether the tokenizer adds its special tokens (a chat template has added them already).
    special_tokens: bool = True
    returns: tuple[str, ...] = ()
    #: How the ticket's adapters are mixed, a mode of ``fusion.modes``; empty for one as it is.
    fusion: str = ""

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, ASCII."""
        return _canonical(vars(self))

    @classmethod
    def from_json(cls, text: str) -> EngineRequest:
        """The request in ``text``, which a valid ticket has vouched for."""
        body = json.loads(text)
        return cls(**{**body, "returns": tuple(body["returns"])})


@dataclasses.dataclass(frozen=True)
class Decision:
    """The gate's answer to an allowed request: the four outputs of ``lora_gate``.

    ``cancel_ticket`` is empty where nobody asked for it.
    """

    prompt: str
    request: str
    ticket: str
    cancel_ticket: str = ""


@dataclasses.dataclass(frozen=True)
class Sequence:
    """What one sequence of a request has gained since the last response.

    ``logprobs`` is JSON text as in the official backend, or None if not asked for.
    """

    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    cumulative_logprob: float | None = None
    logprobs: str | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """One response: ``sequences`` has n elements, whichever of them moved."""

    sequences: tuple[Sequence, ...]
    num_input_tokens: int
    lora_served: str
    request_uid: str
    final: bool
    #: See ``FUSION_OUTPUTS``; empty where nothing was mixed.
    fusion_served: str = ""
