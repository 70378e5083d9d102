"""``model.json`` of the official backend: engine arguments, in the model's version folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from python_backend.settings import SettingsError

FILE = "model.json"


def load(path: Path) -> dict[str, Any]:
    """The arguments in ``path``; none if there is no such file.

    Raises:
        SettingsError: it is no JSON object.
    """
    if not path.exists():
        return {}
    try:
        body = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise SettingsError(f"{path}: must be a JSON object of engine arguments")
    return body
