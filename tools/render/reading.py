"""``fleet.yaml`` read and looked over: whatever cannot be meant so is named with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError

from ensemble.access import UniqueKeyLoader
from tools.policy.lines import Lines, Where
from tools.render.fleet import Fleet
from tools.render.names import overlap


class RenderError(Exception):
    """The file cannot be rendered; one line per problem: the file, the line, the key, the cure."""


#: Where it is, what is wrong and what to do.
Problem = tuple[Where, str]


def load(path: Path) -> tuple[Fleet, Lines]:
    """The fleet in ``path``, with the lines of its keys.

    Raises:
        RenderError: the file is missing, is no YAML, or contradicts itself.
    """
    try:
        text = path.read_text("utf-8")
        # As a policy is read: a key given twice would silently replace the first.
        raw = yaml.load(text, Loader=UniqueKeyLoader)  # noqa: S506 - a safe loader
        lines = Lines(text)
    except (OSError, UnicodeDecodeError) as error:
        raise RenderError(f"{path}: cannot be read: {error}; name the file with --fleet") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or "no YAML"
        raise RenderError(f"{where}: {what}; correct it") from None
    try:
        fleet = Fleet.model_validate(raw)
    except ValidationError as error:
        raise refusal(path, lines, _explained(error)) from None
    if found := list(contradictions(fleet)):
        raise refusal(path, lines, found)
    return fleet, lines


def refusal(path: Path, lines: Lines, problems: list[Problem]) -> RenderError:
    """The problems as an error, in the order of the file."""
    ordered = sorted(problems, key=lambda problem: lines.of(*problem[0]))
    return RenderError(
        "\n".join(
            f"{path}:{lines.of(*where)}: {'.'.join(map(str, where)) or '(top level)'}: {text}"
            for where, text in ordered
        )
    )


_CURES = {
    "extra_forbidden": "unknown key: remove or correct it",
    "missing": "write this key",
    "too_short": "has no members: list at least one, or remove it",
}


def _explained(error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    for problem in error.errors():
        # pydantic says "[key]" behind a mapping's key when it is the key that is wrong.
        where = tuple(part for part in problem["loc"] if part != "[key]")
        cure = _CURES.get(problem["type"])
        text = problem["msg"].removeprefix("Value error, ")
        found.append((where, cure if cure is not None else f"{text}; correct it"))
    return found


def contradictions(fleet: Fleet) -> Iterator[Problem]:
    """What each key may say, and not both."""
    yield from _claims(fleet)
    gateway = fleet.gateway
    if gateway is None:
        return
    if gateway.default_group is not None and gateway.default_group not in fleet.groups:
        known = ", ".join(sorted(fleet.groups))
        yield ("gateway", "default_group"), f"no group of that name; there are {known}"
    if gateway.http_port == gateway.grpc_port:
        yield (
            ("gateway", "grpc_port"),
            f"http_port is {gateway.http_port} too; give each its own port",
        )
    owners = {glob.split("_")[0] for group in fleet.groups.values() for glob in group.adapters}
    for name in gateway.rates.departments:
        if not any(overlap(f"{name}_*", f"{owner}*") for owner in owners):
            yield (
                ("gateway", "rates", "departments", name),
                "no group has an adapter of this department; correct or remove it",
            )


def _claims(fleet: Fleet) -> Iterator[Problem]:
    """Adapters and aliases of two groups, servers that stand twice in one."""
    claimed: list[tuple[str, str]] = []
    aliases: dict[str, str] = {}
    for name, group in fleet.groups.items():
        for at, glob in enumerate(group.adapters):
            for other, taken in claimed:
                if other != name and overlap(glob, taken):
                    yield (
                        ("groups", name, "adapters", at),
                        f"{glob!r} and {taken!r} of {other} can match one adapter; "
                        "let one group have it",
                    )
            claimed.append((name, glob))
        for at, alias in enumerate(group.aliases):
            if aliases.setdefault(alias, name) != name:
                yield (
                    ("groups", name, "aliases", at),
                    f"{alias!r} is an alias of {aliases[alias]} too; let one group have it",
                )
        seen: set[tuple[str, int]] = set()
        for at, server in enumerate(group.servers):
            if {(server.host, server.http), (server.host, server.grpc)} & seen:
                yield ("groups", name, "servers", at), "stands here twice; remove one"
            seen |= {(server.host, server.http), (server.host, server.grpc)}
