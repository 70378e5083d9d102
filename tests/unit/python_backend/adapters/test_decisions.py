from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backend.adapters.aliases import Route
from python_backend.adapters.decisions import Book, Decisions, load
from python_backend.settings import SettingsError

V1, V2, V3 = (Route(to=f"fin_risk_v{number}") for number in (1, 2, 3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "operator.json"


def test_decisions_survive(path: Path) -> None:
    book = Book(path)
    assert book.current == Decisions()
    assert book.change(lambda d: d.disable("fin_risk_v1").pin("svc_chat_v1"))
    assert book.change(lambda d: d.set_alias("risk", V2))
    assert not book.change(lambda d: d.pin("svc_chat_v1"))
    assert Book(path).current == book.current
    assert path.stat().st_mode & 0o777 == 0o600
    assert book.change(lambda d: d.forget("fin_risk_v1").forget("svc_chat_v1"))
    assert (book.current.disabled, book.current.pinned) == (frozenset(), frozenset())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_rollback_is_one_step() -> None:
    settings = {"risk": V1}
    first = Decisions().set_alias("risk", V2)
    assert first.routes(settings) == {"risk": V2}
    assert first.rollback("risk").routes(settings) == {"risk": V1}
    second = first.set_alias("risk", V3)
    assert second.set_alias("risk", V3) is second
    back = second.rollback("risk")
    assert back.routes(settings) == {"risk": V2}
    with pytest.raises(KeyError):
        back.rollback("risk")
    with pytest.raises(KeyError):
        Decisions().rollback("risk")


def test_a_rollback_of_a_new_alias_takes_it_away() -> None:
    assert Decisions().set_alias("new", V1).rollback("new").routes({}) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2}',
        '{"disabled": ["../x"]}',
        '{"pinned": "fin_risk_v1"}',
        '{"aliases": {"base": "fin_risk_v1"}}',
        '{"aliases": {"fin_risk_v1": "fin_risk_v2"}}',
        '{"unknown": 1}',
    ],
)
def test_a_broken_file_stops_the_start(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert str(path) in str(caught.value) and "remove it" in str(caught.value)


def test_what_cannot_be_written_has_not_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(path)

    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        book.change(lambda d: d.disable("fin_risk_v1"))
    assert book.current == Decisions()
    assert list(path.parent.iterdir()) == []
