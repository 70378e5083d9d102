"""Operators' commands against a real adapter root, a real librarian and a fake engine."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from python_backend.admin import desk as desk_module
from python_backend.errors import InvalidArgument, NotFound, ServingError
from tests.unit.python_backend.admin.desk_house import House, run

NAME = "fin_risk_v1"


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody reads the snapshot."""
    monkeypatch.setattr(desk_module, "ACKNOWLEDGE_S", 0.0)


def test_an_adapter_comes_changes_and_goes(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        source = house.write(house.tmp / "incoming" / "new")
        (source / "README.md").write_text("about it")
        done = await house.ended("add", lora_id=NAME, source=str(source))
        assert (done["state"], done["result"]) == ("done", "added")
        assert (house.root / NAME / "README.md").read_text() == "about it"
        row = (await house.listed())[NAME]
        assert (row["state"], row["department"], row["rank"]) == ("ready", "fin", 4)
        assert (row["tiers"], row["uses"], row["last_use_s_ago"]) == (["disk"], 0, None)
        assert house.snapshot()["entries"][NAME]["digest"] == row["digest"]

        assert (await house.ended("add", lora_id=NAME, source=f"file://{source}"))[
            "result"
        ] == "exists"
        other = house.write(house.tmp / "incoming" / "other", "two")
        failed = await house.ended("add", lora_id=NAME, source=str(other))
        assert failed["error"].startswith("invalid_argument: lora_id: there is another")
        assert (await house.ended("update", lora_id=NAME, source=str(other)))["result"] == "updated"
        assert (await house.listed())[NAME]["digest"] != row["digest"]
        assert (await house.ended("update", lora_id=NAME, source=str(other)))[
            "result"
        ] == "unchanged"

        removed = await house.ask("remove", lora_id=NAME)
        assert removed["status"] == "removed"
        assert NAME not in house.snapshot()["entries"]
        assert not (house.root / NAME).exists()
        with pytest.raises(NotFound):
            await house.ask("remove", lora_id=NAME)
        while (await house.ask("job", job=removed["job"]))["state"] == "running":
            await asyncio.sleep(0.05)
        assert [path.name for path in house.root.iterdir()] == []
        assert house.keeper.versions.int_ids().keys() <= {(NAME, row["digest"])}

    run(tmp_path, test)


def test_a_refused_adapter_never_enters_the_root(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        house.write(house.root / NAME)
        await house.ended("add", lora_id=NAME)
        digest = (await house.listed())[NAME]["digest"]
        bad = house.write(house.tmp / "incoming" / "bad", "two")
        (bad / "adapter_model.safetensors").write_bytes(b"cut off")
        for op in ("add", "update"):
            failed = await house.ended(op, lora_id=NAME, source=str(bad))
            assert failed["error"].startswith("adapter_failed: truncated: "), failed
        failed = await house.ended("add", lora_id="fin_new_v1", source=str(bad))
        assert failed["error"].startswith("adapter_failed: ")
        assert [path.name for path in house.root.iterdir()] == [NAME]
        assert (await house.listed())[NAME]["digest"] == digest

    run(tmp_path, test)


@pytest.mark.parametrize(
    "source",
    [
        "{tmp}/elsewhere",
        "{tmp}/incoming",
        "{tmp}/incoming/../elsewhere",
        "{tmp}/incoming/link",
        "{tmp}/incoming-too/x",
        "incoming/x",
        "/etc",
        "s3://bucket/x",
        "https://example.com/x",
        "file://host/x",
        "FILE:relative",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_sources_that_the_settings_do_not_allow(tmp_path: Path, source: str) -> None:
    async def test(house: House) -> None:
        house.write(house.tmp / "elsewhere")
        (house.tmp / "incoming" / "link").symlink_to(house.tmp / "elsewhere")
        house.write(house.tmp / "incoming-too" / "x")
        with pytest.raises(InvalidArgument, match="not allowed by settings"):
            await house.ask("add", lora_id=NAME, source=source.format(tmp=house.tmp))
        assert list(house.root.iterdir()) == []

    run(tmp_path, test)


def test_links_and_folders_in_a_source(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        source = house.write(house.tmp / "incoming" / "x")
        (source / "checkpoint").mkdir()
        assert (await house.ended("add", lora_id=NAME, source=str(source)))["result"] == "added"
        assert not (house.root / NAME / "checkpoint").exists()
        (source / "secret").symlink_to("/etc/passwd")
        failed = await house.ended("add", lora_id="fin_risk_v2", source=str(source))
        assert "secret" in failed["error"] and "symbolic link" in failed["error"]
        gone = await house.ended("add", lora_id="fin_risk_v2", source=f"{source}-not-there")
        assert gone["error"].startswith("adapter_failed: not_a_folder")

    run(tmp_path, test)


def test_thirty_two_at_once(tmp_path: Path) -> None:
    async def attempt(house: House, op: str, **fields: Any) -> str:
        try:
            if op == "remove":
                return str((await house.ask(op, **fields))["status"])
            done = await house.ended(op, **fields)
            return str(done["result"] or done["error"].split(":")[0])
        except ServingError as error:
            return error.code

    async def test(house: House) -> None:
        source = str(house.write(house.tmp / "incoming" / "x"))
        adds = [attempt(house, "add", lora_id=NAME, source=source) for _ in range(32)]
        found = await asyncio.gather(*adds)
        assert sorted(found) == ["added"] + ["exists"] * 31
        removes = [attempt(house, "remove", lora_id=NAME) for _ in range(32)]
        found = await asyncio.gather(*removes)
        assert sorted(found) == ["not_found"] * 31 + ["removed"]

        storm = [
            attempt(house, "remove", lora_id=NAME)
            if number % 2
            else attempt(house, "add", lora_id=NAME, source=source)
            for number in range(32)
        ]
        found = await asyncio.gather(*storm)
        assert set(found) <= {"added", "exists", "removed", "not_found"}
        assert found.count("added") - found.count("removed") in (0, 1)
        assert len(house.keeper.claims) == 0
        there = NAME in await house.listed() and (house.root / NAME).exists()
        assert there == (found.count("added") > found.count("removed"))

    run(tmp_path, test)


def test_the_librarian_takes_no_update_for_a_removal(tmp_path: Path) -> None:
    """While folders are swapped as fast as they can be, the adapter never leaves the list."""

    async def test(house: House) -> None:
        sources = [str(house.write(house.tmp / "incoming" / kind, kind)) for kind in ("one", "two")]
        await house.ended("add", lora_id=NAME, source=sources[0])
        missing = 0
        end = time.monotonic() + 3
        turn = 0
        while time.monotonic() < end:
            turn += 1
            done = await house.ended("update", lora_id=NAME, source=sources[turn % 2])
            assert done["result"] in ("updated", "unchanged"), done
            missing += NAME not in house.snapshot()["entries"]
        assert missing == 0

    run(tmp_path, test)


def test_a_root_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(house: House) -> None:
        house.write(house.root / NAME)
        await house.ended("add", lora_id=NAME)

        def read_only(*_: object, **__: object) -> None:
            raise OSError(30, "Read-only file system", str(house.root))

        monkeypatch.setattr("tempfile.mkdtemp", read_only)
        with pytest.raises(ServingError) as caught:
            await house.ask("remove", lora_id=NAME)
        assert caught.value.message == (
            "unavailable: the adapter root cannot be written: read-only file system."
        )
        assert (await house.listed())[NAME]["state"] == "ready"

    run(tmp_path, test)


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "adapters" / ".admin-abc" / NAME
    left.mkdir(parents=True)

    async def test(house: House) -> None:
        assert list(house.root.iterdir()) == []

    run(tmp_path, test)


def test_folders_dropped_by_hand_still_come_and_go(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        house.write(house.root / NAME)
        async with asyncio.timeout(20):
            while NAME not in await house.listed():
                await asyncio.sleep(0.05)
            shutil.rmtree(house.root / NAME)
            while NAME in house.snapshot()["entries"]:
                await asyncio.sleep(0.05)

    run(tmp_path, test)
