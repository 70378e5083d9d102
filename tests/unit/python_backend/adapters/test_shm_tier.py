"""Copies in shared memory: whole or not at all, and gone with their server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python_backend.adapters import shm_tier
from python_backend.adapters.shm_tier import PREFIX, ShmTier, copy_bytes

HOLD = """
import os, sys
from pathlib import Path
from python_backend.adapters.shm_tier import ShmTier
tier = ShmTier(Path(sys.argv[1]))
tier.open()
assert tier.put(1, Path(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
os._exit(9)
"""


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    folder = tmp_path / "staged"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(b"{}")
    (folder / "adapter_model.safetensors").write_bytes(b"w" * 100)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def test_put_and_drop(root: Path, staged: Path) -> None:
    tier = ShmTier(root)
    assert not tier.put(1, staged)
    tier.open()
    assert tier.put(1, staged)
    pages = 2 * os.sysconf("SC_PAGESIZE")
    assert tier.held == {1: pages} == {1: copy_bytes(staged)}
    assert tier.empty == {1: pages - 102}
    copy = tier.path(1)
    assert copy and (copy / "adapter_model.safetensors").read_bytes() == b"w" * 100
    assert tier.path(2) is None
    tier.drop(1)
    tier.drop(1)
    assert tier.path(1) is None and not copy.exists()
    assert tier.put(1, staged)
    tier.close()
    tier.close()
    assert list(root.iterdir()) == [] and tier.held == tier.empty == {}


def test_what_cannot_be_copied_leaves_nothing(
    root: Path, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = ShmTier(root)
    tier.open()
    (folder,) = root.iterdir()
    assert not tier.put(1, staged / "gone")

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"w")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shm_tier.shutil, "copyfile", full)
        assert not tier.put(1, staged)
    none = os.statvfs_result((1, 1, 1, 0, 0, 1, 1, 1, 0, 255))
    with monkeypatch.context() as patch:
        patch.setattr(shm_tier.os, "statvfs", lambda _: none)
        assert not tier.put(1, staged)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    assert tier.held == {}
    tier.close()


def test_the_next_start_removes_what_a_killed_server_left(root: Path, staged: Path) -> None:
    stranger = root / "lora-tierless"
    stranger.mkdir()
    command = [sys.executable, "-c", HOLD, str(root), str(staged)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "open\n"
        (theirs,) = root.glob(f"{PREFIX}*")
        tier = ShmTier(root)
        tier.open()
        assert (theirs / "1" / "adapter_model.safetensors").exists()
        tier.close()
        assert other.stdin
        other.stdin.close()
        assert other.wait(10) == 9
    assert theirs.exists()
    tier = ShmTier(root)
    tier.open()
    assert not theirs.exists() and stranger.exists()
    tier.close()


def test_two_servers_in_one_shared_memory_keep_apart(root: Path, staged: Path) -> None:
    """Containers that share it may well have the same uid and pid."""
    one, other = ShmTier(root), ShmTier(root)
    one.open()
    assert one.put(1, staged)
    first = one.path(1)
    other.open()
    (staged / "adapter_model.safetensors").write_bytes(b"x" * 100)
    assert other.put(1, staged)
    assert first is not None and (first / "adapter_model.safetensors").read_bytes() == b"w" * 100
    assert other.path(1) != first
    one.close()
    other.close()
