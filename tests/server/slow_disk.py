"""A disk that a test makes slow: every read of an adapter's weights in the engine takes so long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import hooks

# The first of our imports in a model.py, whichever it is.
_OURS = "from python_backend"
_FIRST = """
from python_backend.engine import arguments
arguments.WORKER_EXTENSION = {name!r}
"""


class SlowDisk:
    """Works on servers that are started while it is there.

    Args:
        version: of the engine's model, in a copy of the repository: its ``model.py`` gets the
            extension with hooks.
    """

    def __init__(self, folder: Path, version: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "seconds"
        self.takes(0)
        patch.setenv(hooks.SLOW_DISK, str(self._file))
        model = version / "model.py"
        head, _, rest = model.read_text("utf-8").partition(_OURS)
        assert rest, "it imports ours in this way"
        model.write_text(f"{head}{_FIRST.format(name=hooks.NAME)}{_OURS}{rest}", "utf-8")

    def takes(self, seconds: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._file)
