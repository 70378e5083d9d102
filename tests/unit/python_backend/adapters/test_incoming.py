"""Folders enter the root whole, from where they may, and leave it whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backend.adapters import incoming
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.errors import InvalidArgument

LIMIT = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("root", "from"):
        (tmp_path / name).mkdir()
    return tmp_path / "root"


def source(root: Path, **files: bytes) -> Path:
    folder = root.parent / "from" / "x"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def copy(root: Path, folder: Path, limit: int = LIMIT) -> dict[str, bytes]:
    with incoming.copied(folder, root, [root.parent / "from"], limit) as found:
        assert found.parent == root and found.name.startswith(".")
        assert found.stat().st_mode & 0o777 == 0o755
        content = {path.name: path.read_bytes() for path in found.iterdir()}
    assert list(root.iterdir()) == []
    return content


def test_files_are_copied_and_nothing_is_left(root: Path) -> None:
    assert copy(root, source(root, a=b"1", b=b"")) == {"a": b"1", "b": b""}


def test_a_named_pipe_is_no_file(root: Path) -> None:
    folder = source(root, a=b"1")
    os.mkfifo(folder / "pipe")
    assert copy(root, folder) == {"a": b"1"}


def test_limits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "_MAX_MORE_BYTES", 0)
    folder = source(root, a=b"x" * 100, b=b"x" * 100)
    assert len(copy(root, folder, 200)) == 2
    with pytest.raises(AdapterRejected) as caught:
        copy(root, folder, 199)
    assert caught.value.reason is Reason.TOO_LARGE
    monkeypatch.setattr(incoming, "_MAX_FILES", 1)
    with pytest.raises(AdapterRejected) as caught:
        copy(root, folder)
    assert caught.value.reason is Reason.TOO_LARGE
    assert list(root.iterdir()) == []


def test_a_folder_that_became_a_link_after_it_was_allowed(root: Path) -> None:
    elsewhere = root.parent / "elsewhere"
    (elsewhere / "x").mkdir(parents=True)
    (root.parent / "from" / "sub").symlink_to(elsewhere)
    with pytest.raises(InvalidArgument, match="not allowed"):
        copy(root, root.parent / "from" / "sub" / "x")


def test_put_take_discard(root: Path) -> None:
    final = root / "fin_risk_v1"
    for content in (b"1", b"2"):
        with incoming.copied(source(root, a=content), root, [root.parent / "from"], LIMIT) as found:
            incoming.put(found, final)
        assert (final / "a").read_bytes() == content
        assert list(root.iterdir()) == [final]
    hidden = incoming.take(final)
    assert hidden is not None and not final.exists() and (hidden / "a").exists()
    assert incoming.take(final) is None
    incoming.discard(hidden)
    assert list(root.iterdir()) == []


def test_a_link_in_the_root_is_removed_and_not_followed(root: Path) -> None:
    kept = source(root, a=b"1")
    (root / "fin_risk_v1").symlink_to(kept)
    hidden = incoming.take(root / "fin_risk_v1")
    assert hidden is not None
    incoming.discard(hidden)
    assert list(root.iterdir()) == [] and (kept / "a").exists()


def test_a_failed_put_leaves_the_old_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = root / "fin_risk_v1"
    final.mkdir()
    (final / "old").touch()
    rename, renames = os.rename, []

    def failing(old: Path, new: Path) -> None:
        renames.append(new)
        if len(renames) == 2:
            raise OSError(28, "no space")
        rename(old, new)

    new = root / ".new"
    new.mkdir()
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="no space"):
        incoming.put(new, final)
    assert (final / "old").exists()
    assert sorted(path.name for path in root.iterdir()) == [".new", final.name]
