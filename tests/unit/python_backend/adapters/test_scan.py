"""The adapter root: every adapter is judged, none blocks another, odd names reach no catalog."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backend.adapters import scan as scan_module
from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.scan import ScanResult, scan
from tests import badadapters

TARGET = badadapters.target()


def scanned(root: Path, seen: list[Entry] | None = None) -> ScanResult:
    def progress(done: int, total: int, entry: Entry) -> None:
        assert 1 <= done <= total
        if seen is not None:
            seen.append(entry)

    return scan(root / "adapters", root / "staged", TARGET, 64 << 20, progress)


def test_two_hundred_adapters_some_of_them_broken(tmp_path: Path) -> None:
    for index in range(200):
        layers = (index % 30,)
        badadapters.good(rank=1 + index % 16, layers=layers, lora_alpha=index + 1).write(
            tmp_path / "adapters" / f"fin_unit_v{index}"
        )
    bad = {}
    for index, kind in enumerate(badadapters.KINDS):
        if kind != "no_folder":
            folder = tmp_path / "adapters" / f"bad_kind_v{index}"
            bad[folder.name] = badadapters.make(kind, folder)
    seen: list[Entry] = []
    result = scanned(tmp_path, seen)
    assert len(seen) == len(result.adapters) == 200 + len(bad)
    assert result.badly_named == []
    for lora_id, found in result.adapters.items():
        assert found.entry.lora_id == lora_id
        if lora_id in bad:
            assert found.entry.state is State.FAILED and found.path is None
            assert found.entry.reason.startswith(f"{bad[lora_id]}: ")
        else:
            assert found.entry.state is State.READY and not found.entry.reason
            assert found.path == tmp_path / "staged" / found.entry.digest
            assert found.entry.rank == 1 + int(lora_id.split("_v")[1]) % 16
            assert (
                found.entry.size_bytes == (found.path / "adapter_model.safetensors").stat().st_size
            )
    ready = {f.path for f in result.adapters.values() if f.path}
    assert ready == set((tmp_path / "staged").iterdir()) and len(ready) == 200


def test_odd_names_are_told_to_the_log_only(tmp_path: Path) -> None:
    root = tmp_path / "adapters"
    badadapters.good().write(root / "fin_risk_v1")
    for name in (
        b"Fin_risk_v1",
        b"fin_\xff\xfe_v1",
        "fin_größe_v1".encode(),
        b"base",
        b"a\nb_c_v1",
    ):
        os.mkdir(os.fsencode(root) + b"/" + name)
    badadapters.good().write(root / ".hidden")
    (root / "README.md").write_text("not an adapter")
    result = scanned(tmp_path)
    assert list(result.adapters) == ["fin_risk_v1"]
    assert len(result.badly_named) == 5
    for line in result.badly_named:
        assert line.isascii() and line.isprintable()


def test_a_fault_of_ours_fails_one_adapter_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scan_module.staging.stage

    def stage(source: Path, *rest: object, **more: object) -> object:
        if source.name == "fin_bad_v1":
            raise ZeroDivisionError(f"secret of {source}")
        return real(source, *rest, **more)

    monkeypatch.setattr(scan_module.staging, "stage", stage)
    for name in ("fin_bad_v1", "fin_good_v1"):
        badadapters.good().write(tmp_path / "adapters" / name)
    result = scanned(tmp_path)
    assert result.adapters["fin_good_v1"].entry.state is State.READY
    failed = result.adapters["fin_bad_v1"].entry
    assert failed.reason.startswith("internal: ") and "secret" not in failed.reason


def test_a_root_that_is_not_there_is_the_callers_affair(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scanned(tmp_path)


def test_an_empty_root(tmp_path: Path) -> None:
    (tmp_path / "adapters").mkdir()
    assert scanned(tmp_path) == ScanResult({}, [])
