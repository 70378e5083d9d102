"""Examples for the gate: JSONL of ``{"prompt", "adapter"}`` or ``{"prompt", "mixture"}``."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path
from typing import Any

from python_backend import strict_json
from python_backend.adapters import naming
from python_backend.adapters.naming import BASE
from tools.gate.problem import GateTrainingError

#: Every so many-th prompt, by its hash, is kept from training.
HELD_OUT_SHARE = 5
#: And of the others every so many-th, to find out how sure the gate may be of itself.
CALIBRATION_SHARE = 6
_FORM = '{"prompt": …, "adapter": lora_id or "base"} or {"prompt": …, "mixture": {lora_id: weight}}'


@dataclasses.dataclass(frozen=True)
class Example:
    """A prompt and the weights it should get, base among them; they sum to one."""

    prompt: str
    target: dict[str, float]


def held_out(prompt: str) -> bool:
    """Whether training must not see it: by the prompt alone, whatever stands around it."""
    return hashlib.sha256(prompt.encode("utf-8")).digest()[0] % HELD_OUT_SHARE == 0


def for_calibration(prompt: str) -> bool:
    """Whether a prompt that is not held out is kept for calibration."""
    return hashlib.sha256(prompt.encode("utf-8")).digest()[1] % CALIBRATION_SHARE == 0


def read(path: Path) -> list[Example]:
    """The examples in ``path``, one a line; empty lines are left out.

    Raises:
        GateTrainingError: the file cannot be read, or a line is not an example; names the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GateTrainingError(f"{path}: cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(parse(strict_json.loads(line)))
        except ValueError as error:
            raise GateTrainingError(f"{path}:{number}: {error}; a line is {_FORM}") from None
    return found


def parse(value: Any) -> Example:
    """The example in a line's JSON. Raises ``ValueError``, saying what is wrong."""
    if not isinstance(value, dict) or value.keys() not in (
        {"prompt", "adapter"},
        {"prompt", "mixture"},
    ):
        raise ValueError("not an example")
    prompt = value["prompt"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("the prompt is empty")
    mixture = value.get("mixture", {value.get("adapter"): 1.0})
    if not isinstance(mixture, dict):
        raise ValueError("the mixture is not an object")
    target: dict[str, float] = {}
    for name, weight in mixture.items():
        if name != BASE and not (isinstance(name, str) and naming.is_lora_id(name)):
            raise ValueError(f"{name!a} is not a lora_id")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ValueError("a weight is not a number")
        if not 0.0 <= weight <= 1.0:  # refuses NaN too
            raise ValueError(f"the weight {weight} is not between 0 and 1")
        target[name] = float(weight)
    rest = 1.0 - math.fsum(target.values())
    if rest < -1e-6:
        raise ValueError("the weights sum to more than 1")
    if rest > 1e-6:
        target[BASE] = target.get(BASE, 0.0) + rest
    return Example(prompt, {name: weight for name, weight in target.items() if weight > 0})


def adapters(examples: list[Example]) -> tuple[str, ...]:
    """The lora_ids that occur, sorted."""
    return tuple(sorted({name for example in examples for name in example.target} - {BASE}))
