"""Triton's socket for the door of mixtures; what it does is in ``python_backend.doors``."""

import locale

# The stub starts in the C locale, in which reading UTF-8 files fails.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

from python_backend.wire.door_model import DoorModel  # noqa: E402


class TritonPythonModel(DoorModel):
    """One door."""

    can_stream = True
    says_fusion = True
