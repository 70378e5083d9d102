"""Operators add and update adapters from a web server; whatever comes of it, nothing is left."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from python_backend.errors import InvalidArgument
from tests.badadapters.files import WEIGHTS_FILE
from tests.unit.python_backend.adapters.web_house import Web, serving
from tests.unit.python_backend.admin.desk_house import House, run

NAME = "fin_risk_v1"


def served(house: House, kind: str) -> dict[str, bytes]:
    folder = house.write(house.tmp / "incoming" / kind, kind)
    return {f"/lora/{path.name}": path.read_bytes() for path in folder.iterdir()}


def hidden(house: House) -> list[str]:
    return [path.name for path in (house.tmp / "adapters").iterdir() if path.name[0] == "."]


def test_add_and_update_from_a_web_server(tmp_path: Path) -> None:
    with serving({}) as web:

        async def test(house: House) -> None:
            web.files = served(house, "one")
            done = await house.ended("add", lora_id=NAME, source=f"{web.url}/lora")
            assert done["result"] == "added"
            first = (await house.listed())[NAME]
            assert (first["state"], first["reason"]) == ("ready", "")
            again = await house.ended("add", lora_id=NAME, source=f"{web.url}/lora/")
            assert again["result"] == "exists"
            web.files = served(house, "two")
            done = await house.ended("update", lora_id=NAME, source=f"{web.url}/lora")
            assert done["result"] == "updated"
            assert (await house.listed())[NAME]["digest"] != first["digest"]
            assert hidden(house) == []

        run(tmp_path, test, sources={"allow": ["http"]})


def test_what_cannot_be_fetched_changes_nothing(tmp_path: Path) -> None:
    with serving({}) as web:

        async def test(house: House) -> None:
            web.files = served(house, "one")
            await house.ended("add", lora_id=NAME, source=f"{web.url}/lora")
            before = (await house.listed())[NAME]
            for path, status, code in (
                (WEIGHTS_FILE, 403, "source_forbidden"),
                ("adapter_config.json", 404, "source_not_found"),
            ):
                web.status = {f"/lora/{path}": status}
                failed = await house.ended("update", lora_id=NAME, source=f"{web.url}/lora")
                assert failed["error"].startswith(f"adapter_failed: {code}: {path} ")
            web.status = {}
            web.files[f"/lora/{WEIGHTS_FILE}"] = b"garbage"
            failed = await house.ended("update", lora_id=NAME, source=f"{web.url}/lora")
            assert failed["error"].startswith("adapter_failed: ")
            assert (await house.listed())[NAME] == before
            assert hidden(house) == []

        run(tmp_path, test, sources={"allow": ["http"]})


def test_a_pin_holds(tmp_path: Path) -> None:
    with serving({}) as web:

        async def test(house: House) -> None:
            web.files = served(house, "one")
            source = f"{web.url}/lora"
            wrong = await house.ended("add", lora_id=NAME, source=source, sha256="0" * 64)
            assert wrong["error"] == "adapter_failed: the adapter is not the one that sha256 pins."
            assert NAME not in await house.listed() and hidden(house) == []
            weights = hashlib.sha256(web.files[f"/lora/{WEIGHTS_FILE}"]).hexdigest()
            for pin in (weights, None):
                pin = pin or (await house.listed())[NAME]["digest"]
                done = await house.ended("add", lora_id=NAME, source=source, sha256=pin)
                assert done["result"] in ("added", "exists")
            folder = str(house.tmp / "incoming" / "one")
            done = await house.ended("update", lora_id=NAME, source=folder, sha256="0" * 64)
            assert "sha256 pins" in done["error"]
            with pytest.raises(InvalidArgument, match="sha256"):
                await house.ask("add", lora_id=NAME, sha256=weights)

        run(tmp_path, test, sources={"allow": ["http"]})


@pytest.mark.parametrize("allow", [[], ["s3"], ["http://127.0.0.2"]])
def test_what_is_not_allowed_is_refused_at_once(tmp_path: Path, allow: list[str]) -> None:
    with serving({}) as web:

        async def test(house: House) -> None:
            with pytest.raises(InvalidArgument, match="not allowed by settings"):
                await house.ask("add", lora_id=NAME, source=f"{web.url}/lora")
            assert web.asked == []

        run(tmp_path, test, sources={"allow": allow})


async def running(house: House, web: Web) -> dict[str, Any]:
    """A job that has begun to fetch from a slow server."""
    job = (await house.ask("add", lora_id=NAME, source=f"{web.url}/lora"))["job"]
    while len(web.asked) < 2:
        await asyncio.sleep(0.01)
    return await house.ask("job", job=job)


def test_a_slow_source_holds_up_nobody(tmp_path: Path) -> None:
    with serving({}, pace_s=0.05) as web:

        async def test(house: House) -> None:
            web.files = served(house, "one")
            shown = await running(house, web)
            assert shown["state"] == "running" and shown["step"].startswith("fetching")
            folder = str(house.tmp / "incoming" / "one")
            async with asyncio.timeout(5):
                done = await house.ended("add", lora_id=NAME, source=folder)
                assert done["result"] == "added"
                assert (await house.ask("remove", lora_id=NAME))["status"] == "removed"

        # The house is closed while the adapter is still on its way: that must not take long.
        run(tmp_path, test, sources={"allow": ["http"]})


def test_a_job_is_cancelled_and_leaves_nothing(tmp_path: Path) -> None:
    with serving({}, pace_s=0.05) as web:

        async def test(house: House) -> None:
            web.files = served(house, "one")
            job = (await running(house, web))["job"]
            assert hidden(house)
            assert await house.ask("job_cancel", job=job) == {"cancelled": True}
            while (found := await house.ask("job", job=job))["state"] == "running":
                await asyncio.sleep(0.01)
            assert found["error"] == "cancelled: an operator cancelled it."
            while hidden(house):
                await asyncio.sleep(0.01)
            assert NAME not in await house.listed()
            # The name is free, and the threads are too.
            web.pace_s = 0.0
            for _ in range(5):
                done = await house.ended("add", lora_id=NAME, source=f"{web.url}/lora")
                assert done["result"] in ("added", "exists")
            assert await house.ask("job_cancel", job=done["job"]) == {"cancelled": False}

        run(tmp_path, test, sources={"allow": ["http"]})


def test_a_restart_uses_no_half_of_a_fetch(tmp_path: Path) -> None:
    """As after a kill in the middle: the folder is there, the job is not."""
    half = tmp_path / "adapters" / ".admin-half"

    async def before(house: House) -> None:
        house.write(half)
        (half / WEIGHTS_FILE).write_bytes((half / WEIGHTS_FILE).read_bytes()[:-100])

    async def after(house: House) -> None:
        assert hidden(house) == [] and await house.listed() == {}
        with pytest.raises(InvalidArgument, match="no such job"):
            await house.ask("job", job="0" * 16)

    run(tmp_path, before)
    assert half.exists()
    run(tmp_path, after)
