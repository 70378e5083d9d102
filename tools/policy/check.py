"""What is odd about a policy that can be read."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Collection

from ensemble.access import Policy
from tools.policy.lines import Lines


@dataclasses.dataclass(frozen=True, order=True)
class Remark:
    """One thing to look at, with its line. ``error``: it cannot have been meant so."""

    line: int
    text: str
    error: bool = False


def covers(wide: str, narrow: str) -> bool:
    """Whether every lora_id that ``narrow`` matches is matched by ``wide`` too.

    Decided for the globs people write (equal ones, and ``*`` or ``?`` against fixed text); where it
    cannot be told the answer is no.
    """
    if wide == narrow:
        return True
    if "[" in narrow or "[" in wide:
        return False

    @functools.cache
    def covered(i: int, j: int) -> bool:
        """Whether ``wide[i:]`` covers ``narrow[j:]``."""
        if i == len(wide):
            return j == len(narrow)
        if wide[i] == "*":
            return covered(i + 1, j) or (j < len(narrow) and covered(i, j + 1))
        # A star of the narrow glob can stand for any text: only a star of the wide one covers it.
        if j == len(narrow) or narrow[j] == "*":
            return False
        return wide[i] in ("?", narrow[j]) and covered(i + 1, j + 1)

    return covered(0, 0)


def remarks(
    policy: Policy, lines: Lines, *, now_s: float, known: Collection[str] | None = None
) -> list[Remark]:
    """Everything odd, by line.

    Args:
        now_s: the wall clock, Unix seconds.
        known: lora_ids of the adapters there are, or None if that is not known.
    """
    found: list[Remark] = []
    used = {principal.department for principal in policy.principals}
    by_token = policy.jwt is not None and policy.jwt.department_claim is not None
    for name, department in policy.departments.items():
        here = lines.of("departments", name)
        if name not in used and not by_token:
            found.append(Remark(here, f"nobody is in the department {name!r}"))
        if not department.adapters and not department.base:
            found.append(Remark(here, f"the department {name!r} may use nothing"))
        found += _globs(name, department.adapters, lines, known)
        if department.fusion and not department.adapters:
            found.append(Remark(here, f"{name!r} may fuse, but has no adapter to fuse"))
    for at, principal in enumerate(policy.principals):
        here = lines.of("principals", at)
        if not principal.api_key_sha256 and principal.jwt_subject is None:
            found.append(Remark(here, f"{principal.name!r} has no key and no jwt_subject"))
        if "caller" not in principal.roles:
            found.append(Remark(here, f"{principal.name!r} may not generate: no role caller"))
        expired = [k for k in principal.api_key_sha256 if k.expires and k.expires <= now_s]
        for number, key in enumerate(principal.api_key_sha256):
            if key in expired:
                where = lines.of("principals", at, "api_key_sha256", number)
                found.append(Remark(where, f"a key of {principal.name!r} has expired; remove it"))
        if expired and len(expired) == len(principal.api_key_sha256) and not principal.jwt_subject:
            found.append(Remark(here, f"all keys of {principal.name!r} have expired", error=True))
    return sorted(found)


def _globs(
    name: str, globs: tuple[str, ...], lines: Lines, known: Collection[str] | None
) -> list[Remark]:
    found = []
    for at, glob in enumerate(globs):
        line = lines.of("departments", name, "adapters", at)
        others = [
            other
            for i, other in enumerate(globs)
            if i != at and covers(other, glob) and (i < at or not covers(glob, other))
        ]
        if others:
            found.append(
                Remark(line, f"{glob!r} of {name!r} is shadowed: {others[0]!r} allows it already")
            )
        if known is not None and not fnmatch.filter(known, glob):
            found.append(Remark(line, f"{glob!r} of {name!r} matches no known adapter"))
    return found
