"""The modes of ``fusion`` that need more than the caller's weights plug in here."""

from __future__ import annotations

from ensemble.fusing import AUTO, DISTRIBUTION, FIELD, Wish
from python_backend.errors import InvalidArgument


def weighted(wish: Wish) -> Wish:
    """The wish with its weights: those that were given, or computed ones.

    Raises:
        InvalidArgument: this server has not what the mode needs.
    """
    if wish.mode == AUTO:
        raise InvalidArgument(
            FIELD, "mode auto needs a trained gate, which this server does not have"
        )
    if wish.mode == DISTRIBUTION:
        raise InvalidArgument(FIELD, "mode distribution is not served here")
    return wish
