"""The engine model's own ``parameters`` in ``config.pbtxt``, named as in the official backend."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

REPORT_METRICS = "REPORT_CUSTOM_METRICS"
HEALTH_CHECK = "ENABLE_VLLM_HEALTH_CHECK"
#: Ours: the GPUs that the engine may use, by number, such as ``0,1``; absent: all there are.
DEVICES = "DEVICES"


def parameters(args: Mapping[str, str]) -> dict[str, str]:
    """The ``parameters`` of ``config.pbtxt``, from the arguments of ``initialize``."""
    found = json.loads(args["model_config"]).get("parameters", {})
    return {name: str(value.get("string_value", "")) for name, value in found.items()}


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """What Triton says of the model, and the model's parameters.

    A parameter is on when it is ``true``, in any case; absent or anything else is off, as in the
    official backend.
    """

    name: str
    version: str
    report_metrics: bool = False
    health_check: bool = False
    devices: str = ""

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> ModelOptions:
        """The options in the arguments of ``initialize``."""
        found = parameters(args)

        def on(name: str) -> bool:
            return found.get(name, "").lower() == "true"

        return cls(
            args["model_name"],
            args["model_version"],
            on(REPORT_METRICS),
            on(HEALTH_CHECK),
            found.get(DEVICES, ""),
        )
