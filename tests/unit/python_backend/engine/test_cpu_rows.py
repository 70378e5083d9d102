"""Where the products of few rows cannot be compiled, the engine starts without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from python_backend.engine import cpu_rows


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    kept = cpu_rows.compiled
    cpu_rows.compiled.cache_clear()
    yield
    kept.cache_clear()


@pytest.mark.parametrize("error", [ImportError("numba"), RuntimeError("no such target")])
def test_it_is_told_of_once_and_done_without(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(kind: str) -> None:
        raise error

    monkeypatch.setattr(cpu_rows, "_compile", broken)
    assert cpu_rows.compiled("float32") is None
    assert cpu_rows.compiled("float32") is None
    assert [record.name for record in caplog.records] == [cpu_rows.__name__]
    assert "slower" in caplog.text


def test_other_types_are_not_compiled() -> None:
    assert cpu_rows.compiled("float16") is None
