"""A folder that has to be signed, and the server that looks at its signature."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from python_backend.adapters import staging
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing_keys import KeyFile
from tests.badadapters import good, target
from tests.badadapters.files import WEIGHTS_FILE

NAME = "fin_risk_v1"
NOW = 1_800_000_000.0
LIMIT = 64 << 20


class SignedFolder:
    """A folder, a keys file, and a server that wants ``fin_*`` signed.

    Args:
        hidden: what no refusal may say.
    """

    def __init__(self, tmp: Path, keys: list[dict[str, object]], hidden: str) -> None:
        self.folder, self.staged, self.keys = tmp / NAME, tmp / "staged", tmp / "keys.yaml"
        self.now, self.hidden = NOW, hidden
        good().write(self.folder)
        (self.folder / "README.md").write_text("about it")
        self.write_keys(keys)
        self.policy = SignaturePolicy(("fin_*",), KeyFile(self.keys), lambda: self.now)

    def write_keys(self, keys: list[dict[str, object]]) -> None:
        self.keys.touch(0o600)
        self.keys.write_text(yaml.safe_dump({"version": 1, "keys": keys}))

    def stage(self, lora_id: str = NAME) -> staging.StagedAdapter:
        return staging.stage(
            self.folder, self.staged, target(), LIMIT, lora_id=lora_id, signatures=self.policy
        )

    def refuses(self, reason: Reason, *mentions: str, lora_id: str = NAME) -> None:
        with pytest.raises(AdapterRejected) as caught:
            self.stage(lora_id)
        assert caught.value.reason is reason, caught.value.text
        sentence = caught.value.sentence
        for words in mentions:
            assert words in sentence, sentence
        assert sentence.isascii() and self.hidden not in sentence
        assert not list(self.staged.glob("*"))


def edit_weights(folder: Path) -> None:
    path = folder / WEIGHTS_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
