"""Which line of a policy decides."""

from __future__ import annotations

import dataclasses
import fnmatch

from ensemble.access import Policy
from python_backend.adapters import naming
from tools.policy.lines import Lines


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A verdict, the line (from 1) that it rests on, and why."""

    allowed: bool
    line: int
    why: str


def explain(policy: Policy, lines: Lines, name: str, lora_id: str) -> Explanation:
    """What the policy says of the principal ``name`` and the adapter ``lora_id`` (or ``base``)."""
    at = next((i for i, p in enumerate(policy.principals) if p.name == name), None)
    if at is None:
        return Explanation(False, lines.of("principals"), f"no principal {name!r} is listed")
    principal = policy.principals[at]
    department = policy.departments[principal.department]
    if "caller" not in principal.roles:
        return Explanation(
            False, lines.of("principals", at, "roles"), f"{name!r} has no role caller"
        )
    if lora_id == naming.BASE:
        where = lines.of("departments", principal.department, "base")
        word = "true" if department.base else "false"
        return Explanation(department.base, where, f"base is {word} for {principal.department!r}")
    if not naming.is_lora_id(lora_id):
        where = lines.of("departments", principal.department)
        return Explanation(False, where, f"{lora_id!r} is not a lora_id; no glob is asked")
    for number, glob in enumerate(department.adapters):
        if fnmatch.fnmatchcase(lora_id, glob):
            where = lines.of("departments", principal.department, "adapters", number)
            return Explanation(True, where, f"{glob!r} of {principal.department!r} matches")
    where = lines.of("departments", principal.department, "adapters")
    return Explanation(False, where, f"no glob of {principal.department!r} matches")
