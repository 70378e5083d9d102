"""A disk that a test makes slow: every read of an adapter's weights in the engine takes so long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_HOOK = """
import time
import safetensors

_open = safetensors.safe_open

def safe_open(path, *args, **kwargs):
    if str(path).endswith("adapter_model.safetensors"):
        try:
            with open({file!r}) as file:
                time.sleep(float(file.read() or 0))
        except FileNotFoundError:
            pass
    return _open(path, *args, **kwargs)

safetensors.safe_open = safe_open
"""


class SlowDisk:
    """Works on servers that are started while it is there.

    Python imports a module ``sitecustomize`` by itself at its start; this one waits where vLLM
    opens a weight file.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "seconds"
        (folder / "sitecustomize.py").write_text(_HOOK.format(file=str(self._file)))
        path = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(p for p in (str(folder), path) if p))

    def takes(self, seconds: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._file)
