"""Files and folders appear whole or not at all."""

import json
import os
import stat
from pathlib import Path

import pytest

from tools.demo.files import link_or_copy, new_folder, write_file, write_json


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    with new_folder(target) as building:
        (building / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["demo"]


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(RuntimeError), new_folder(target) as building:
        (building / "new").touch()
        raise RuntimeError
    assert os.listdir(tmp_path) == ["demo"]
    assert os.listdir(target) == ["old"]


def test_a_new_folder_replaces_the_old_one_wholly(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / "old").touch()
    with new_folder(target) as building:
        (building / "new").touch()
    assert os.listdir(target) == ["new"]
    assert os.listdir(tmp_path) == ["demo"]


def test_scratch_keeps_half_built_folders_out_of_a_watched_one(tmp_path: Path) -> None:
    watched = tmp_path / "adapters"
    watched.mkdir()
    with new_folder(watched / "one", scratch=tmp_path):
        assert os.listdir(watched) == []
    assert os.listdir(watched) == ["one"]
    assert os.listdir(tmp_path) == ["adapters"]


def test_other_users_may_read_a_new_folder(tmp_path: Path) -> None:
    with new_folder(tmp_path / "demo"):
        pass
    assert stat.S_IMODE((tmp_path / "demo").stat().st_mode) == 0o755


def test_a_secret_has_its_mode_before_it_has_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    real = os.open

    def watch(path: str, flags: int, mode: int = 0o777) -> int:
        asked.append((flags & os.O_EXCL, mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", watch)
    write_file(tmp_path / "keys.json", "secret", mode=0o600)
    assert asked == [(os.O_EXCL, 0o600)]
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_a_file_that_was_readable_by_all_is_not_after_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("old")
    file.chmod(0o644)
    write_json(file, {"fin": "é"}, mode=0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text(encoding="utf-8")) == {"fin": "é"}
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_file_is_copied_where_it_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    (tmp_path / "a").write_text("weights")
    monkeypatch.setattr(os, "link", refuse)
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "weights"
    assert (tmp_path / "b").stat().st_nlink == 1
