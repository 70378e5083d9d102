from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from python_backend.admission import Admission, Limits, Share, shares
from python_backend.admission.gauges import Gauges
from python_backend.metrics import Update

POLICY = """
version: 1
departments:
  fin: {adapters: [fin_*], weight: 3, concurrency: 4, tokens_per_minute: 600}
  svc: {base: true}
  qa:
principals: []
"""


def test_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    assert shares.read(path) == {"fin": Share(3.0, 4, 600), "svc": Share(), "qa": Share()}


@pytest.mark.parametrize(
    "text",
    [
        "departments: [fin]",
        "- fin",
        "departments: {fin: 3}",
        "departments: {fin: {weight: 0}}",
        "departments: {fin: {weight: .nan}}",
        "departments: {fin: {weight: '3'}}",
        "departments: {fin: {concurrency: 0}}",
        "departments: {fin: {tokens_per_minute: 1.5}}",
        "departments: {fin: {concurrency: true}}",
        "departments: {",
    ],
)
def test_what_makes_no_sense(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy\.yaml"):
        shares.read(path)


def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    seen: list[Mapping[str, Share]] = []

    def replace(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", path)

    async def main() -> None:
        task = asyncio.create_task(shares.follow(path, seen.append, every_s=0.01))
        async with asyncio.timeout(10):
            while len(seen) < 1:
                await asyncio.sleep(0.01)
            replace("departments: {")
            await asyncio.sleep(0.1)
            assert len(seen) == 1
            replace("departments: {fin: {weight: 9}}")
            while len(seen) < 2:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(main())
    assert seen[1] == {"fin": Share(9.0)}


def test_gauges_go_back_to_nothing() -> None:
    put: list[Sequence[Update]] = []

    async def main() -> None:
        admission = Admission(Limits(1, 1, reserve_seats=0))
        gauges = Gauges(admission, put.append)
        with admission.place("fin") as place:
            await place.enter(7, 5, 5)
            with admission.place("svc", 3):
                found = {(u.name, u.labels): u.values for u in gauges.updates()}
        assert found == {
            ("lora_queue_depth", (("department", "fin"),)): (0,),
            ("lora_requests_in_engine", (("department", "fin"),)): (1,),
            ("lora_queue_depth", (("department", "svc"),)): (3,),
            ("lora_requests_in_engine", (("department", "svc"),)): (0,),
        }
        assert {u.values for u in gauges.updates()} == {(0,)}
        assert gauges.updates() == []
        with admission.place("fin") as place:
            await place.enter(8, 5, 5)
        gauges.updates()
        with admission.place("fin") as place:
            await place.enter(7, 5, 5)
        switched = [u for u in gauges.updates() if not u.labels]
        assert [u.values for u in switched] == [(1,)]
        await asyncio.sleep(0.4)  # reports by itself as well

    asyncio.run(main())
    assert put
