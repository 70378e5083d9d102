"""Every bad adapter is refused for exactly its own reason; nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.staging import stage
from tests import badadapters

TARGET = badadapters.target()
LIMIT = 64 << 20


@pytest.mark.parametrize("kind", badadapters.KINDS)
def test_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = badadapters.make(kind, tmp_path / "source")
    with pytest.raises(AdapterRejected) as caught:
        stage(tmp_path / "source", tmp_path / "staged", TARGET, LIMIT)
    assert caught.value.reason_code == expected, caught.value.text
    sentence = caught.value.sentence
    assert sentence.isascii() and sentence.isprintable() and sentence.endswith(".")
    assert str(tmp_path) not in sentence and len(sentence) < 500
    assert not list((tmp_path / "staged").glob("*"))
    assert not (tmp_path / badadapters.BOMB).exists()


def test_the_reasons_are_a_closed_list() -> None:
    assert set(badadapters.KINDS.values()) <= set(Reason)
    # These need a full disk or keys; their tests are elsewhere.
    assert set(Reason) - set(badadapters.KINDS.values()) == {
        Reason.NO_SPACE,
        Reason.UNSIGNED,
        Reason.BAD_SIGNATURE,
        Reason.SIGNING_KEY,
    }


def test_the_file_limit_is_asked_before_a_byte_is_copied(tmp_path: Path) -> None:
    badadapters.good().write(tmp_path / "source")
    with pytest.raises(AdapterRejected) as caught:
        stage(tmp_path / "source", tmp_path / "staged", TARGET, 1000)
    assert caught.value.reason is Reason.TOO_LARGE
    assert not (tmp_path / "staged").exists()


def test_the_sentence_names_tensor_and_sizes(tmp_path: Path) -> None:
    badadapters.make("extra_vocabulary", tmp_path / "source")
    with pytest.raises(AdapterRejected) as caught:
        stage(tmp_path / "source", tmp_path / "staged", TARGET, LIMIT)
    for part in ("lora_embedding_A", "49216", "49152"):
        assert part in caught.value.sentence
