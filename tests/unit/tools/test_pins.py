from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import layout
from tools.install import pins

LOCK = """# a comment
torch==2.13.0
Zope.Event==6.2   # why
six==1.17.0; python_version > "3.11"

triton==3.9.0
"""


def test_pins_are_the_lines_without_comments() -> None:
    assert pins.pins(LOCK) == [
        "torch==2.13.0",
        "Zope.Event==6.2",
        'six==1.17.0; python_version > "3.11"',
        "triton==3.9.0",
    ]


@pytest.mark.parametrize(
    ("pin", "name"),
    [
        ("Zope.Event==6.2", "zope-event"),
        ('six==1.17.0; python_version > "3.11"', "six"),
        ("pyjwt[crypto]==2", "pyjwt"),
    ],
)
def test_name_of(pin: str, name: str) -> None:
    assert pins.name_of(pin) == name


def test_without_compares_canonical_names() -> None:
    assert pins.without(pins.pins(LOCK), {"zope-event", "six", "torch"}) == ["triton==3.9.0"]


def test_torch_version_must_be_exact() -> None:
    assert pins.torch_version(pins.pins(LOCK)) == "2.13.0"
    with pytest.raises(ValueError, match=r"requirements\.lock"):
        pins.torch_version(["torch>=2"])


def test_digest_follows_content_and_facts(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    before = pins.digest([one, two], "3.11")
    assert pins.digest([two, one], "3.11") == before
    assert pins.digest([one, two], "3.12") != before
    assert pins.digest([one, two], "3.1", "1") != before
    two.write_text("3")
    assert pins.digest([one, two], "3.11") != before


def test_stamp(tmp_path: Path) -> None:
    stamp = tmp_path / "folder" / "stamp"
    assert not pins.is_stamped(stamp, "a")
    pins.write_stamp(stamp, "a")
    assert pins.is_stamped(stamp, "a")
    assert not pins.is_stamped(stamp, "b")
    assert [path.name for path in stamp.parent.iterdir()] == ["stamp"]


def test_every_line_of_the_lock_is_exact_and_every_direct_dependency_is_in_it() -> None:
    locked = pins.pins(layout.LOCK.read_text())
    assert all(re.search(r"==\d[\w.+]*(; .+)?$", pin) for pin in locked)
    names = [pins.name_of(pin) for pin in locked]
    assert len(names) == len(set(names))
    direct = pins.pins((layout.ROOT / "requirements.txt").read_text())
    assert {pins.name_of(pin) for pin in direct} <= set(names)
