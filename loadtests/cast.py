"""Who takes part: the departments of a server's folder and the markers that they may use."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ensemble.access import PolicyError, load_policy
from loadtests.problem import LoadProblem


@dataclasses.dataclass(frozen=True)
class Member:
    """An adapter of a department, and the word that it says; the base model without."""

    department: str
    lora_id: str | None = None
    word: str | None = None


@dataclasses.dataclass(frozen=True)
class Cast:
    """The adapters with markers, by department.

    ``spares`` are markers that nobody has yet, named as in the folder that the server may add from.
    """

    members: Mapping[str, tuple[Member, ...]]
    spares: tuple[Member, ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """All that markers say."""
        found = (one for part in (*self.members.values(), self.spares) for one in part)
        return frozenset(one.word for one in found if one.word)

    def of(self, department: str, count: int | None = None) -> tuple[Member, ...]:
        """The first so many adapters of a department; all of them for None."""
        return self.members[department][:count]

    def everyone(self, count: int) -> tuple[Member, ...]:
        """So many adapters, the departments in turn."""
        rows = [list(part) for _, part in sorted(self.members.items())]
        found = [row[n] for n in range(max(map(len, rows))) for row in rows if n < len(row)]
        return tuple(found[:count])


def spares_of(words: Mapping[str, str]) -> tuple[Member, ...]:
    """Members of no department, by their markers' names."""
    return tuple(Member("", marker, word) for marker, word in sorted(words.items()))


def base(department: str) -> Member:
    """The base model, asked by a department."""
    return Member(department)


def read_cast(folder: Path) -> Cast:
    """The cast of a folder as ``tools demo`` makes them; principals go by their key's name.

    Raises:
        LoadProblem: a file is missing or wrong, or no key may use a marker.
    """
    keys, markers = (_mapping(folder / name) for name in ("keys.json", "markers.json"))
    try:
        policy = load_policy(folder / "policy.yaml")
    except PolicyError as error:
        raise LoadProblem(str(error)) from None
    members = {}
    for name, key in keys.items():
        found = policy.by_key_digest(hashlib.sha256(key.encode()).digest())
        if found is None:
            raise LoadProblem(
                f"{folder / 'keys.json'}: the key {name!r} is not in the policy beside it"
            )
        own = tuple(
            Member(name, lora_id, word)
            for lora_id, word in sorted(markers.items())
            if policy.may_use(found[1], lora_id)
        )
        if own:
            members[name] = own
    if not members:
        raise LoadProblem(
            f"{folder / 'markers.json'}: no markers that a key may use, so no answer could be "
            f"checked; `python -m tools demo --markers 32` makes some"
        )
    spares = folder / "spares.json"
    return Cast(members, spares_of(_mapping(spares)) if spares.exists() else ())


def _mapping(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LoadProblem(f"{path}: {error}; is this a folder of `python -m tools demo`?") from None
    if not isinstance(found, dict):
        raise LoadProblem(f"{path}: must be an object of names and texts")
    return {str(name): str(text) for name, text in found.items()}
