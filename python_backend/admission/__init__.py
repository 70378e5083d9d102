"""The only way into the engine: who may wait, who enters next, and what they are charged."""

from python_backend.admission.limits import Limits, Share
from python_backend.admission.waiting import Admission, Place

__all__ = ["Admission", "Limits", "Place", "Share"]
