"""``adapter_config.json`` as PEFT writes it: what it must say, and what we cannot honour.

``target_modules`` is not evaluated (the tensors decide) and ``base_model_name_or_path`` is never
followed: neither reaches the canonical configuration that the engine sees.
"""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import regex  # type: ignore[import-untyped]  # vLLM's own engine for patterns; it has a timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from python_backend import strict_json
from python_backend.adapters.rejection import AdapterRejected, Reason, shown

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20
#: Bounds of alpha/r. Training uses 0.1 to 64; outside these the adapter is either damaged or
#: indistinguishable from the base model.
MIN_SCALING, MAX_SCALING = 1e-6, 1e4
_MAX_PATTERNS, _MAX_PATTERN_LENGTH, _PATTERN_SECONDS = 1024, 512, 1.0

#: Inits after which a saved adapter is a plain LoRA (vllm/lora/peft_helper.py, 0.32); the others
#: (PiSSA, OLoRA, CorDA, LoftQ) change the base weights too.
_PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
#: PEFT 0.21 features that change what the adapter computes and that vLLM does not implement.
_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "fan_in_fan_out",
    "layer_replication",
    "alora_invocation_tokens",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)

Rank = Annotated[int, Field(strict=True, ge=1)]
Alpha = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class PeftConfig(BaseModel):
    """The fields that decide what the adapter computes; see ``parse``."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    r: Rank
    lora_alpha: Alpha
    target_modules: list[str] | str | None = None
    use_rslora: bool = False
    rank_pattern: dict[str, Rank] = {}
    alpha_pattern: dict[str, Alpha] = {}

    def ranks_and_scalings(self, paths: list[str]) -> dict[str, tuple[int, float, float]]:
        """(rank, alpha, scaling) of each module path, by PEFT's and vLLM's own rule.

        A pattern fits a path as ``(.*\\.)?(pattern)$``; the first in the file wins
        (``get_rank_and_scaling`` of vllm/lora/peft_helper.py).

        Raises:
            AdapterRejected: a pattern is no expression, takes too long, or a scaling is absurd.
        """
        deadline_s = time.monotonic() + _PATTERN_SECONDS
        ranks = _Patterns("rank_pattern", self.rank_pattern, deadline_s)
        alphas = _Patterns("alpha_pattern", self.alpha_pattern, deadline_s)
        found = {}
        for path in paths:
            rank = int(ranks.match(path) or self.r)
            alpha = alphas.match(path) or self.lora_alpha
            scaling = alpha / (math.sqrt(rank) if self.use_rslora else rank)
            if not MIN_SCALING <= scaling <= MAX_SCALING:
                raise _bad(
                    f"lora_alpha {alpha:g} at rank {rank} scales {shown(path)} by {scaling:g}, "
                    f"outside {MIN_SCALING:g} to {MAX_SCALING:g}; correct lora_alpha"
                )
            found[path] = (rank, alpha, scaling)
        return found


class _Patterns:
    """``rank_pattern`` or ``alpha_pattern``, whose expressions are not trusted to be quick."""

    def __init__(self, key: str, patterns: dict[str, Any], deadline_s: float) -> None:
        self._key, self._deadline_s = key, deadline_s
        if len(patterns) > _MAX_PATTERNS:
            raise _bad(f"{key} has {len(patterns)} entries; at most {_MAX_PATTERNS} are read")
        self._compiled = [(self._compile(text), value) for text, value in patterns.items()]

    def _compile(self, text: str) -> Any:
        # "(?" would allow switches, look-around and recursion; PEFT's patterns need none.
        plain = len(text) <= _MAX_PATTERN_LENGTH and "(?" not in text.replace("(?:", "")
        try:
            if plain:
                return regex.compile(rf"(.*\.)?({text})$")
        except (regex.error, RecursionError, OverflowError, MemoryError):
            pass
        raise _bad(f"{self._key} key {shown(text)} is not a module name or a simple expression")

    def match(self, path: str) -> Any:
        """The value of the first pattern that fits ``path``, or None."""
        for compiled, value in self._compiled:
            try:
                timeout = max(0.001, self._deadline_s - time.monotonic())
                if compiled.match(path, timeout=timeout):
                    return value
            except (TimeoutError, MemoryError):  # "(x{1000}){1000}" is too much for the matcher
                raise _bad(f"{self._key} takes too long to evaluate; name the modules") from None
        return None


def _bad(problem: str) -> AdapterRejected:
    return AdapterRejected(Reason.BAD_CONFIG, f"{CONFIG_FILE}: {problem}.")


def parse(raw: bytes, max_rank: int) -> PeftConfig:
    """The configuration in ``raw``.

    Raises:
        AdapterRejected: ``empty_file``, ``too_large``, ``bad_config``, ``unsupported_feature`` or
            ``rank_too_large``; the sentence names the key.
    """
    if not raw:
        raise AdapterRejected(Reason.EMPTY_FILE, f"{CONFIG_FILE} is empty; copy it again.")
    if len(raw) > MAX_CONFIG_BYTES:
        raise AdapterRejected(
            Reason.TOO_LARGE, f"{CONFIG_FILE} is above {MAX_CONFIG_BYTES} bytes; save it again."
        )
    try:
        body = strict_json.loads_object(raw)
    except strict_json.StrictJsonError as error:
        raise _bad(str(error)) from None
    _check_kind(body)
    # PEFT writes null for what was not set.
    body = {key: value for key, value in body.items() if value is not None}
    try:
        config = PeftConfig.model_validate(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in problem["loc"][:2])
        raise _bad(f"{shown(key)[1:-1]}: {problem['msg']}") from None
    largest = max([config.r, *config.rank_pattern.values()])
    if largest > max_rank:
        raise AdapterRejected(
            Reason.RANK_TOO_LARGE,
            f"{CONFIG_FILE}: rank {largest} is above the engine's max_lora_rank {max_rank}; "
            "raise max_lora_rank or train a smaller rank.",
        )
    return config


def _check_kind(body: dict[str, Any]) -> None:
    """Refuses what is not a plain LoRA."""

    def unsupported(key: str) -> AdapterRejected:
        return AdapterRejected(
            Reason.UNSUPPORTED_FEATURE,
            f"{CONFIG_FILE}: {shown(key)[1:-1]} is {shown(body[key])}, which the engine cannot "
            "honour; save the adapter as a plain LoRA.",
        )

    if not isinstance(body.get("peft_type"), str):
        raise _bad("peft_type is missing or not text; it must be LORA")
    if body["peft_type"] != "LORA":
        raise unsupported("peft_type")
    for key in _UNSUPPORTED:
        if body.get(key):
            raise unsupported(key)
        # aLoRA with an empty list of tokens would still be aLoRA.
        if key == "alora_invocation_tokens" and body.get(key) is not None:
            raise unsupported(key)
    for key, value in body.items():
        # PEFT calls its switches use_*; one that is on and unknown here cannot be honoured.
        if key.startswith("use_") and key != "use_rslora" and value:
            raise unsupported(key)
    if body.get("bias", "none") not in ("none", None):
        raise unsupported("bias")
    init = body.get("init_lora_weights", True)
    if isinstance(init, str):
        if init.lower() not in _PLAIN_INITS:
            raise unsupported("init_lora_weights")
    elif init is not None and not isinstance(init, bool):
        raise _bad("init_lora_weights must be true, false or a name")
