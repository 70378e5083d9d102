"""The departments' shares, as the policy file has them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from python_backend import files
from python_backend.admission.limits import Share

log = logging.getLogger(__name__)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> dict[str, Share]:
    """The shares in the policy file ``path``; what the file does not say has its default.

    The gates judge the file as a whole; here only the three fields that concern the engine are
    read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a policy, or a share in it makes no sense.
    """
    try:
        raw = yaml.load(path.read_text("utf-8"), Loader=_LOADER)  # noqa: S506 a safe loader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as YAML: {error}") from None
    departments = raw.get("departments") if isinstance(raw, dict) else None
    if not isinstance(departments, dict):
        raise ValueError(f"{path}: has no mapping of departments")
    return {str(name): _share(path, name, body or {}) for name, body in departments.items()}


def _share(path: Path, name: Any, body: Any) -> Share:
    if not isinstance(body, Mapping):
        raise ValueError(f"{path}: departments.{name}: not a mapping")
    weight = body.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"{path}: departments.{name}.weight: not a number")
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"{path}: departments.{name}.weight: must be above 0")
    bounds: dict[str, int | None] = {}
    for key in ("concurrency", "tokens_per_minute"):
        value = body.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValueError(f"{path}: departments.{name}.{key}: not a whole number")
        if value is not None and value < 1:
            raise ValueError(f"{path}: departments.{name}.{key}: must be above 0")
        bounds[key] = value
    return Share(float(weight), **bounds)


async def follow(
    path: Path, take: Callable[[Mapping[str, Share]], None], every_s: float = 1.0
) -> None:
    """Hands over the shares now and whenever the file has changed; for ever.

    A file that cannot be used leaves the last good shares in force.
    """
    stamp: object = None
    while True:
        found = await asyncio.to_thread(files.stamp, path)
        if found != stamp:
            stamp = found
            try:
                take(await asyncio.to_thread(read, path))
            except (OSError, ValueError) as error:
                log.error("the last good shares stay in force: %s", error)
        await asyncio.sleep(every_s)
