"""Which line of a policy decides."""

from __future__ import annotations

import dataclasses
import fnmatch

from ensemble.access import Policy, Principal
from python_backend.adapters import naming
from python_backend.errors import InvalidArgument
from python_backend.fusion import expression
from python_backend.fusion_settings import FusionSettings
from tools.policy.lines import Lines

#: Wider than any server's.
_ANY = FusionSettings(max_parts=64, max_weight=1000, min_sum=-64_000, max_sum=64_000)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A verdict, the line (from 1) that it rests on, and why."""

    allowed: bool
    line: int
    why: str


def explain(policy: Policy, lines: Lines, name: str, lora_id: str) -> Explanation:
    """What the policy says of the principal ``name`` and ``lora_id``: an adapter, ``base``, or a
    mixture, whose weights are bounded by the server's settings and not by the policy."""
    at = next((i for i, p in enumerate(policy.principals) if p.name == name), None)
    if at is None:
        return Explanation(False, lines.of("principals"), f"no principal {name!r} is listed")
    principal = policy.principals[at]
    if "caller" not in principal.roles:
        return Explanation(
            False, lines.of("principals", at, "roles"), f"{name!r} has no role caller"
        )
    if expression.is_expression(lora_id):
        return _mixture(policy, lines, principal, lora_id)
    return _one(policy, lines, principal, lora_id)


def _mixture(policy: Policy, lines: Lines, principal: Principal, text: str) -> Explanation:
    department = policy.departments[principal.department]
    try:
        terms = expression.resolved(
            expression.parse(text, _ANY), naming.check_lora_id, _ANY, field="lora_id"
        )
    except InvalidArgument as error:
        return Explanation(False, lines.of("departments", principal.department), error.sentence)
    where = lines.of("departments", principal.department, "fusion")
    word = "true" if department.fusion else "false"
    why = f"fusion is {word} for {principal.department!r}"
    if not department.fusion:
        return Explanation(False, where, why)
    parts = [name for name, _ in terms]
    if share := expression.base_share(terms):
        parts.append(naming.BASE)
        why += f", and base has a share of {expression.number(share)}"
    for part in parts:
        found = _one(policy, lines, principal, part)
        if not found.allowed:
            return dataclasses.replace(found, why=f"{part}: {found.why}")
    return Explanation(True, where, why)


def _one(policy: Policy, lines: Lines, principal: Principal, lora_id: str) -> Explanation:
    department = policy.departments[principal.department]
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
