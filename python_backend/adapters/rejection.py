"""Why an adapter is refused: a closed list of reasons, and the exception that carries one."""

from __future__ import annotations

import enum

from python_backend.errors import AdapterFailed

_SHOWN_LENGTH = 120


class Reason(enum.StrEnum):
    """Every reason for which an adapter is refused before the engine hears of it."""

    NOT_A_FOLDER = "not_a_folder"
    SYMLINK = "symlink"
    UNREADABLE = "unreadable"
    NO_SPACE = "no_space"
    MISSING_CONFIG = "missing_config"
    MISSING_WEIGHTS = "missing_weights"
    EMPTY_FILE = "empty_file"
    TOO_LARGE = "too_large"
    PICKLE = "pickle"
    BAD_CONFIG = "bad_config"
    UNSUPPORTED_FEATURE = "unsupported_feature"
    RANK_TOO_LARGE = "rank_too_large"
    HEADER_TOO_LARGE = "header_too_large"
    BAD_HEADER = "bad_header"
    BAD_INDEX = "bad_index"
    TRUNCATED = "truncated"
    WRONG_DTYPE = "wrong_dtype"
    NO_TENSORS = "no_tensors"
    FOREIGN_TENSOR = "foreign_tensor"
    UNKNOWN_MODULE = "unknown_module"
    DUPLICATE_TENSOR = "duplicate_tensor"
    WRONG_SHAPE = "wrong_shape"
    RANK_MISMATCH = "rank_mismatch"
    HALF_PAIR = "half_pair"
    NON_FINITE = "non_finite"
    OUT_OF_RANGE = "out_of_range"
    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    SIGNING_KEY = "signing_key"


#: Reasons that lie outside the adapter: the same bytes may pass later.
TRANSIENT = frozenset({Reason.NO_SPACE, Reason.UNREADABLE})


class AdapterRejected(AdapterFailed):
    """An adapter that must not reach the engine.

    Args:
        reason: one of the closed list.
        sentence: the file, the tensor or key, and the cure, in plain ASCII. It names nothing
            outside the adapter's own folder.
    """

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason

    @property
    def reason_code(self) -> str:
        """The reason as text, such as ``wrong_shape``."""
        return str(self.reason)

    @property
    def text(self) -> str:
        """``reason: sentence``, as the catalog and the log show it."""
        return f"{self.reason_code}: {self.sentence}"


def shown(value: object) -> str:
    """``value``, which came from a file or a folder, quoted in ASCII and cut to a sane length.

    Names may carry control characters, or surrogates where the file system's encoding is ASCII.
    """
    text = ascii(value)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 4] + "...'"
