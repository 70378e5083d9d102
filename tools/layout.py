"""Where things lie in the checkout. Standard library only: set-up runs before any package."""

from __future__ import annotations

from pathlib import Path

#: The checkout; also what goes on the server's ``PYTHONPATH``.
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
#: Everything set-up writes outside ``.venv``; safe to delete.
CACHE = ROOT / ".cache"
#: Backends for the tritonserver of the nvidia-pytriton wheel.
BACKENDS = CACHE / "triton" / "backends"
#: A libpython, for a Python whose distribution packages it apart.
LIBPYTHON = CACHE / "triton" / "lib"
SETUP_CACHE = CACHE / "setup"
LOCK = ROOT / "requirements.lock"
