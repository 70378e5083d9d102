"""The copy is what counts: whole, read-only, addressed by content, whatever the source does."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import threading
from pathlib import Path

import pytest

from python_backend.adapters import source_folder, staging
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.staging import StagedAdapter, clean, content_digest, stage
from tests.badadapters import BOMB, Shapes, good, target
from tests.badadapters.files import CONFIG_FILE, WEIGHTS_FILE

TARGET = target()
LIMIT = 64 << 20


def staged(root: Path, name: str = "source") -> StagedAdapter:
    return stage(root / name, root / "staged", TARGET, LIMIT)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "staged").iterdir())


def test_the_copy_is_whole_read_only_and_canonical(tmp_path: Path) -> None:
    good(target_modules="all-linear").write(tmp_path / "source")
    (tmp_path / "source" / "README.md").write_text("ignored")
    copy = staged(tmp_path)
    assert copy.path == tmp_path / "staged" / copy.digest and copy.path.is_absolute()
    assert names(tmp_path) == [copy.digest]
    assert sorted(path.name for path in copy.path.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]
    original = (tmp_path / "source" / WEIGHTS_FILE).read_bytes()
    assert (copy.path / WEIGHTS_FILE).read_bytes() == original
    assert (copy.rank, copy.size_bytes) == (4, len(original))
    modes = [path.stat().st_mode & 0o777 for path in (copy.path, *copy.path.iterdir())]
    assert modes == [0o555, 0o444, 0o444]
    config = json.loads((copy.path / CONFIG_FILE).read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert "base_model_name_or_path" not in config


def test_the_digest_is_of_the_original_bytes(tmp_path: Path) -> None:
    good().write(tmp_path / "source")
    first = staged(tmp_path)
    good(base_model_name_or_path="another").write(tmp_path / "source")
    second = staged(tmp_path)
    assert first.digest != second.digest
    assert names(tmp_path) == sorted([first.digest, second.digest])
    assert content_digest({"a": (1, b"x" * 32)}) != content_digest({"b": (1, b"x" * 32)})


def test_a_whole_copy_is_used_again_and_a_damaged_one_replaced(tmp_path: Path) -> None:
    good().write(tmp_path / "source")
    copy = staged(tmp_path)
    inode = copy.path.stat().st_ino
    assert staged(tmp_path) == copy and copy.path.stat().st_ino == inode
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        file = copy.path / name
        whole = file.read_bytes()
        file.chmod(0o600)
        file.write_bytes(whole[:-1] + b"!")
        assert staged(tmp_path) == copy
        assert file.read_bytes() == whole and names(tmp_path) == [copy.digest]


def test_a_copy_made_for_another_model_is_refused(tmp_path: Path) -> None:
    good().write(tmp_path / "source")
    copy = staged(tmp_path)
    with pytest.raises(AdapterRejected) as caught:
        stage(tmp_path / "source", tmp_path / "staged", target(Shapes(hidden=64)), LIMIT)
    assert caught.value.reason is Reason.WRONG_SHAPE
    assert names(tmp_path) == [copy.digest]


def test_leftovers_are_cleaned_and_copies_kept(tmp_path: Path) -> None:
    good().write(tmp_path / "source")
    copy = staged(tmp_path)
    left = tmp_path / "staged" / ".tmp-killed"
    left.mkdir()
    (left / "half").write_bytes(b"half")
    left.chmod(0o555)
    assert clean(tmp_path / "staged") == 1
    assert names(tmp_path) == [copy.digest]
    assert clean(tmp_path / "never-made") == 0


def test_the_same_content_from_many_threads_is_one_copy(tmp_path: Path) -> None:
    for index in range(8):
        good().write(tmp_path / f"source{index}")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        copies = set(pool.map(lambda i: staged(tmp_path, f"source{i}"), range(8)))
    assert len(copies) == 1 and names(tmp_path) == [copies.pop().digest]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["_write", "_sync_folder", "_move"])
def test_a_full_disk_leaves_nothing(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    good().write(tmp_path / "source")
    monkeypatch.setattr(staging, call, full)
    with pytest.raises(AdapterRejected) as caught:
        staged(tmp_path)
    expected = Reason.UNREADABLE if number == errno.EIO else Reason.NO_SPACE
    assert caught.value.reason is expected
    assert names(tmp_path) == []


def test_writes_during_the_copy_change_nothing_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source changes between the two readings: what was copied is what is named and judged."""
    good(rank=8).write(tmp_path / "source")
    good(rank=8, dtype="BF16").write(tmp_path / "other")
    wanted = stage(tmp_path / "other", tmp_path / "apart", TARGET, LIMIT)
    other = (tmp_path / "other" / WEIGHTS_FILE).read_bytes()
    hashed = source_folder.SourceFiles.digest

    def hash_then_change(files: source_folder.SourceFiles) -> tuple[int, bytes]:
        result = hashed(files)
        (tmp_path / "source" / WEIGHTS_FILE).write_bytes(other)
        return result

    monkeypatch.setattr(source_folder.SourceFiles, "digest", hash_then_change)
    copy = staged(tmp_path)
    assert copy.digest == wanted.digest
    assert (copy.path / WEIGHTS_FILE).read_bytes() == other


def test_a_source_that_never_rests_is_refused_or_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    good().write(source)
    wholes = [(source / WEIGHTS_FILE).read_bytes()]
    good(dtype="BF16").write(source)
    wholes.append((source / WEIGHTS_FILE).read_bytes())
    stop = threading.Event()

    def swap() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            file = source / WEIGHTS_FILE
            if turn % 3 == 0:
                file.unlink()
                file.symlink_to("/dev/zero")
                file.unlink()
                file.write_bytes(wholes[turn % 2])
            else:
                file.write_bytes(wholes[turn % 2][: len(wholes[0]) // (1 + turn % 2)])
                file.write_bytes(wholes[turn % 2])

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(300):
            try:
                copy = staged(tmp_path)
            except AdapterRejected:
                continue
            # A copy taken between two writes may mix two files of one layout, but it is judged,
            # and its digest tells it from either.
            content = (copy.path / WEIGHTS_FILE).read_bytes()
            assert len(content) == copy.size_bytes
            assert not (copy.path / WEIGHTS_FILE).is_symlink()
    finally:
        stop.set()
        swapper.join()
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_file_that_grows_stops_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good().write(tmp_path / "source")
    endless = iter(lambda: b"x" * 1024, b"")
    monkeypatch.setattr(source_folder, "_read_at", lambda *a: next(endless))
    with pytest.raises(AdapterRejected) as caught:
        stage(tmp_path / "source", tmp_path / "staged", TARGET, 1 << 20)
    assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_rights_is_unreadable(tmp_path: Path) -> None:
    good().write(tmp_path / "source")
    (tmp_path / "source").chmod(0)
    with pytest.raises(AdapterRejected) as caught:
        staged(tmp_path)
    assert caught.value.reason is Reason.UNREADABLE
    assert not (tmp_path / BOMB).exists()
