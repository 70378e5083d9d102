"""What operators decided at run time: disabled, pinned, aliases. It outlives the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from python_backend import files
from python_backend.adapters import naming
from python_backend.adapters.aliases import Route, check_alias
from python_backend.settings import SettingsError, explain

#: In the state dir.
FILE = "operator.json"


class Decisions(BaseModel):
    """The decisions as they stand.

    ``aliases`` holds those that were set at run time and ``previous`` what each stood for before,
    None where the settings' own (or nothing) did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    disabled: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    aliases: dict[str, Route] = {}
    previous: dict[str, Route | None] = {}

    @field_validator("disabled", "pinned")
    @classmethod
    def _lora_ids(cls, names: frozenset[str]) -> frozenset[str]:
        for name in names:
            if not naming.is_lora_id(name):
                raise ValueError(f"{name!r} is not a lora_id")
        return names

    @model_validator(mode="after")
    def _alias_names(self) -> Decisions:
        for alias, route in self.aliases.items():
            check_alias(alias, route)
        return self

    def routes(self, settings: Mapping[str, Route]) -> dict[str, Route]:
        """All aliases: those of the settings, and over them those set at run time."""
        return {**settings, **self.aliases}

    def pin(self, lora_id: str) -> Decisions:
        """With ``lora_id`` pinned."""
        return self.model_copy(update={"pinned": self.pinned | {lora_id}})

    def unpin(self, lora_id: str) -> Decisions:
        """With ``lora_id`` not pinned."""
        return self.model_copy(update={"pinned": self.pinned - {lora_id}})

    def disable(self, lora_id: str) -> Decisions:
        """With ``lora_id`` disabled."""
        return self.model_copy(update={"disabled": self.disabled | {lora_id}})

    def enable(self, lora_id: str) -> Decisions:
        """With ``lora_id`` not disabled."""
        return self.model_copy(update={"disabled": self.disabled - {lora_id}})

    def forget(self, lora_id: str) -> Decisions:
        """Without what was decided for an adapter that is gone for good."""
        return self.enable(lora_id).unpin(lora_id)

    def set_alias(self, alias: str, route: Route) -> Decisions:
        """With ``alias`` leading to ``route``; what it led to before is kept for a rollback.

        Setting what is set already changes nothing, so that a repeated call loses no rollback.
        """
        if self.aliases.get(alias) == route:
            return self
        return self.model_copy(
            update={
                "aliases": {**self.aliases, alias: route},
                "previous": {**self.previous, alias: self.aliases.get(alias)},
            }
        )

    def rollback(self, alias: str) -> Decisions:
        """With ``alias`` as it was before it was last set.

        Raises:
            KeyError: it was not set at run time, or has been rolled back. One step is kept: a
                repeated call must not go further back than was meant.
        """
        before = self.previous[alias]
        aliases = {name: route for name, route in self.aliases.items() if name != alias}
        if before is not None:
            aliases[alias] = before
        previous = {name: route for name, route in self.previous.items() if name != alias}
        return self.model_copy(update={"aliases": aliases, "previous": previous})


def load(path: Path) -> Decisions:
    """The decisions in ``path``; none if there is no such file.

    Raises:
        SettingsError: the file cannot be used. To start without it would serve what an operator
            has disabled.
    """
    cure = "restore it, or remove it to start with nothing disabled, pinned or aliased at run time"
    try:
        return Decisions.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Decisions()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; {cure}") from None
    except ValidationError as error:
        raise SettingsError(f"{explain(path, error)}; {cure}") from None


class Book:
    """The decisions with the file they are kept in. Thread-safe.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._decisions = load(path)

    @property
    def current(self) -> Decisions:
        """The decisions as they stand."""
        return self._decisions

    def change(self, change: Callable[[Decisions], Decisions]) -> bool:
        """Applies ``change`` and writes the outcome down; whether anything changed.

        Raises:
            OSError: it could not be written; nothing has changed.
        """
        with self._lock:
            changed = change(self._decisions)
            if changed == self._decisions:
                return False
            files.replace(self._path, changed.model_dump_json(indent=1) + "\n")
            self._decisions = changed
            return True
