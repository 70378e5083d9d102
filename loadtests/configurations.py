"""What a server is started with: our protections, or without those that settings turn off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backend.breaker_settings import BreakerSettings

PROTECTED, UNPROTECTED = "protected", "unprotected"

#: Protection → the settings that turn it off. What stands in no setting (tickets, validation and
#: private copies of adapters, the checks of every answer) cannot be turned off.
_OFF: dict[str, Mapping[str, Any]] = {
    "access control": {"access": {"control": "off"}},
    "seats and slots in reserve": {"admission": {"reserve_seats": 0, "reserve_slots": 0}},
    "small steps beside small callers": {"admission": {"burst": None}},
    "breakers": {"breakers": {name: {"enforce": False} for name in BreakerSettings.model_fields}},
    "canary": {"observation": {"canary_s": 0}},
    "audit": {"audit": {"enabled": False}},
}
#: Not by a setting: everybody is put into one department, within which it is first come, first
#: served, as it is where nothing knows departments.
FAIR_QUEUE = "fair queue between departments"

_ALL_ON = dict.fromkeys((FAIR_QUEUE, *_OFF), True)

#: All on, all off, and all but one: what that one costs.
CONFIGURATIONS: dict[str, dict[str, bool]] = {
    PROTECTED: _ALL_ON,
    UNPROTECTED: dict.fromkeys(_ALL_ON, False),
    **{f"without-{name.replace(' ', '-')}": {**_ALL_ON, name: False} for name in _ALL_ON},
}


def settings(protections: Mapping[str, bool]) -> dict[str, Any]:
    """The settings that turn off what is to be off."""
    found: dict[str, Any] = {}
    for name, off in _OFF.items():
        if not protections[name]:
            found = merged(found, off)
    return found


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below`` with what ``above`` says, section by section."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result
