from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from python_backend.adapters.versions import MAX_INT_ID, Versions
from python_backend.errors import NotFound

PATH = Path("staged")


def test_one_content_one_version() -> None:
    versions = Versions()
    first = versions.register("fin_risk_v1", "a" * 64, PATH)
    assert versions.register("fin_risk_v1", "a" * 64, Path("elsewhere")) is first
    assert versions.get("fin_risk_v1", "a" * 64) is first
    assert (first.int_id, first.name, first.path) == (1, "fin_risk_v1@aaaaaaaaaaaa", PATH)


def test_other_content_or_name_is_another_version() -> None:
    versions = Versions()
    found = [
        versions.register(name, digest * 64, PATH)
        for name in ("fin_risk_v1", "fin_risk_v2")
        for digest in "ab"
    ]
    assert [v.int_id for v in found] == [1, 2, 3, 4]
    assert len({v.name for v in found}) == 4


def test_ids_are_never_reused() -> None:
    versions = Versions()
    ids = []
    for _ in range(5):
        version = versions.register("fin_risk_v1", "a" * 64, PATH)
        ids.append(version.int_id)
        assert versions.forget_idle(version)
    assert ids == [1, 2, 3, 4, 5]


def test_unknown_and_forgotten() -> None:
    versions = Versions()
    assert versions.forget_idle(versions.register("fin_risk_v1", "a" * 64, PATH))
    for digest in ("a" * 64, "b" * 64):
        with pytest.raises(NotFound):
            versions.get("fin_risk_v1", digest)
        with pytest.raises(NotFound), versions.lease("fin_risk_v1", digest):
            pass
    assert versions.leases == 0


def test_a_leased_version_is_not_forgotten() -> None:
    versions = Versions()
    version = versions.register("fin_risk_v1", "a" * 64, PATH)
    with versions.lease("fin_risk_v1", "a" * 64), versions.lease("fin_risk_v1", "a" * 64):
        assert versions.leases == 2
        assert not versions.forget_idle(version)
        assert versions.get("fin_risk_v1", "a" * 64) is version
    assert versions.leases == 0
    assert versions.has_digest("a" * 64)
    assert versions.forget_idle(version)
    assert not versions.has_digest("a" * 64)


def test_ids_stay_below_two_to_the_31() -> None:
    assert MAX_INT_ID < 2**31
    versions = Versions()
    versions._ids = itertools.count(MAX_INT_ID)
    assert versions.register("fin_risk_v1", "a" * 64, PATH).int_id == MAX_INT_ID
    with pytest.raises(OverflowError, match="restart"):
        versions.register("fin_risk_v2", "a" * 64, PATH)
    with pytest.raises(NotFound):
        versions.get("fin_risk_v2", "a" * 64)


def test_from_many_threads() -> None:
    versions = Versions()
    names = [f"fin_a{number % 50}_v1" for number in range(2_000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: versions.register(name, "a" * 64, PATH), names))
    by_name = {v.lora_id: v.int_id for v in found}
    assert all(v.int_id == by_name[v.lora_id] for v in found)
    assert sorted(by_name.values()) == list(range(1, 51))


def test_an_old_version_does_not_take_its_successor_along() -> None:
    versions = Versions()
    old = versions.register("fin_risk_v1", "a" * 64, PATH)
    assert versions.forget_idle(old)
    new = versions.register("fin_risk_v1", "a" * 64, PATH)
    # A second retirement of the old one, still under way.
    assert versions.forget_idle(old)
    assert versions.get("fin_risk_v1", "a" * 64) is new
