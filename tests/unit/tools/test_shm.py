from __future__ import annotations

from pathlib import Path

import pytest

from tools.serving import shm


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    (folder / "checkout").mkdir(parents=True)
    for name in ("ours_1", "ours_2", "theirs_1", "psm_1", "checkout/lib.so"):
        (folder / name).touch()
    return folder


def test_only_regions_with_the_prefix(memory: Path) -> None:
    assert {path.name for path in shm.with_prefix("ours_", memory)} == {"ours_1", "ours_2"}
    assert shm.with_prefix("", memory) == set(), "an empty prefix must not mean everything"
    assert shm.with_prefix("a*", memory) == set()


def test_mapped_regions_of_the_processes_asked_for(memory: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, region in (("7", "psm_1"), ("8", "theirs_1")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "maps").write_text(
            f"7f00-7f01 r-xp 00000000 00:01 1    /usr/lib/libc.so.6\n"
            f"7f02-7f03 rw-s 00000000 00:01 2    {memory}/{region}\n"
            f"7f04-7f05 rw-s 00000000 00:01 3    {memory}/gone_1 (deleted)\n"
            f"7f06-7f07 r-xp 00000000 00:01 4    {memory}/checkout/lib.so\n"
        )
    found = shm.mapped_by([7, 9], memory, proc)
    assert {path.name for path in found} == {"psm_1", "gone_1"}, "a folder there is not a region"


def test_remove_leaves_what_is_in_use(memory: Path) -> None:
    gone = shm.remove([memory / "ours_1", memory / "ours_2", memory / "never"], [memory / "ours_2"])
    assert gone == [memory / "ours_1"]
    assert (memory / "ours_2").exists() and (memory / "theirs_1").exists()
