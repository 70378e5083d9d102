"""The trained gate of mode ``auto`` as it lies on disk, with what it needs to read a prompt."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from python_backend import files
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import SIGNATURE_FILE
from python_backend.adapters.signing_keys import KeyFile, SigningKeysError
from python_backend.errors import InvalidArgument, Unavailable
from python_backend.fusion import embeddings, gate_file
from python_backend.fusion.embeddings import Embeddings, EmbeddingsError
from python_backend.fusion.gate_file import GATE_FILE, GateFileError
from python_backend.fusion.gating import Gate
from python_backend.settings import Settings

log = logging.getLogger(__name__)

#: How often it is looked for a newer gate, at most, seconds.
RECHECK_S = 1.0
#: Characters of a prompt that are read, from its beginning and from its end.
_MOST_CHARS = 4096
#: What a caller is told whose server has no usable gate, and when to try again, seconds.
_BROKEN, _RETRY_S = "the trained gate of this server cannot be used.", 60

_Stamps = tuple[files.Stamp | None, ...]


@dataclasses.dataclass(frozen=True)
class Reader:
    """A gate, the embeddings it was trained on, and the tokenizer before them."""

    gate: Gate
    rows: Embeddings
    encode: Callable[[str], list[int]]

    def weights(self, text: str, allowed: set[str], *, base: bool) -> dict[str, float]:
        """The weights for a prompt (``Gate.weights``); of a long one its two ends are read.

        Raises:
            ValueError: no adapter with a learnt key is allowed, nor base.
        """
        if len(text) > 2 * _MOST_CHARS:
            text = f"{text[:_MOST_CHARS]}\n{text[-_MOST_CHARS:]}"
        # A text without any token is about nothing: the first row of the matrix stands for it.
        return self.gate.weights(self.rows.rows(self.encode(text) or [0]), allowed, base=base)


class TrainedGate:
    """Read when first asked for, and again when it has changed. Thread-safe.

    A gate that cannot be used takes nothing else down; after a good one, the good one stays.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.fusion.auto.gate
        self._signing = settings.signing
        self._model = settings.engine.get("model")
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._stamps: _Stamps | None = None
        self._checked_s = float("-inf")

    def current(self, model_dir: str, now_s: float) -> Reader:
        """The newest good gate.

        Args:
            model_dir: the base model's folder, for its tokenizer.
            now_s: a monotonic clock, seconds.

        Raises:
            InvalidArgument: this server has none.
            Unavailable: it has one that cannot be used; the log says why.
        """
        if self._folder is None:
            raise InvalidArgument("fusion.mode", "auto needs a trained gate; this server has none")
        with self._lock:
            if now_s - self._checked_s >= RECHECK_S:
                self._checked_s = now_s
                names = (GATE_FILE, SIGNATURE_FILE)
                stamps = tuple(files.stamp(self._folder / name) for name in names)
                if stamps != self._stamps:
                    self._stamps = stamps
                    self._load(self._folder, model_dir)
            if self._reader is None:
                raise Unavailable(_BROKEN, retry_after=_RETRY_S)
            return self._reader

    def _load(self, folder: Path, model_dir: str) -> None:
        try:
            keys_file = self._signing.keys_file
            keys = None if keys_file is None else KeyFile(keys_file)
            signatures = SignaturePolicy(self._signing.require, keys)
            named = Path(str(self._model)) if self._model else None
            rows = embeddings.open_model(named if named and named.is_dir() else Path(model_dir))
            gate = gate_file.read(
                folder, base=rows.digest, hidden=rows.hidden, signatures=signatures
            )
            self._reader = Reader(gate, rows, tokenizer(Path(model_dir)))
        except (GateFileError, EmbeddingsError, SigningKeysError) as error:
            log.error("mode auto%s: %s", "" if self._reader else " is not served", error)
        else:
            log.info("mode auto: a gate of %d adapters is in use", len(gate.names))


def tokenizer(model_dir: Path) -> Callable[[str], list[int]]:
    """Text to token ids as a gate reads it. Raises ``GateFileError``."""
    from tokenizers import Tokenizer

    file = model_dir / "tokenizer.json"
    try:
        found = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise GateFileError(f"{file}: cannot be used as a tokenizer: {error}") from None

    def encode(text: str) -> list[int]:
        ids: list[int] = found.encode(text, add_special_tokens=False).ids
        return ids

    return encode
