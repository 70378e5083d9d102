"""Roll-outs: an alias is pointed elsewhere, for some or all requests, and back. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from python_backend.adapters.aliases import Route
from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.decisions import Decisions
from python_backend.admin.commands import Command
from python_backend.errors import InvalidArgument, NotFound


def route(command: Command, entries: Mapping[str, Entry]) -> Route:
    """The route that ``alias_set`` asks for; its adapters must be able to answer.

    Raises:
        NotFound: one of them is not there or not ready.
        InvalidArgument: they do not fit together.
    """
    try:
        found = Route(to=command.to, canary=command.canary or None, share=command.share)
    except ValidationError as error:
        problem = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise InvalidArgument("canary", problem) from None
    for target in found.targets:
        entry = entries.get(target)
        if entry is None or entry.state is not State.READY:
            raise NotFound
    return found


def rollback(alias: str) -> Callable[[Decisions], Decisions]:
    """The change that takes the last one of ``alias`` back."""

    def change(decided: Decisions) -> Decisions:
        try:
            return decided.rollback(alias)
        except KeyError:
            raise InvalidArgument("alias", "there is nothing to go back to") from None

    return change


def shown(routes: Mapping[str, Route], decided: Decisions) -> list[dict[str, Any]]:
    """One row for each alias, by name; ``set_by`` says whether the settings or an operator."""
    return [
        {
            "alias": alias,
            **found.model_dump(),
            "set_by": "operator" if alias in decided.aliases else "settings",
            "can_roll_back": alias in decided.previous,
        }
        for alias, found in sorted(routes.items())
    ]
