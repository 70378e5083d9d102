"""Adapters of a multi_lora.json and folders of the adapter root under one name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from python_backend.adapters.librarian import LISTED
from python_backend.errors import InvalidArgument
from tests.badadapters import good
from tests.unit.python_backend.admin.desk_house import KINDS, House, run

NAME = "fin_risk_v1"


@pytest.mark.parametrize("first", ["root", "list"])
def test_the_listed_one_is_served_whichever_was_there_first(tmp_path: Path, first: str) -> None:
    other = tmp_path / "other"
    good(**KINDS["two"]).write(other)
    if first == "root":
        good(**KINDS["one"]).write(tmp_path / "adapters" / NAME)

    async def test(house: House) -> None:
        digest = (await house.listed())[NAME]["digest"]
        if first == "list":
            house.write(house.root / NAME)
        while not (row := (await house.listed())[NAME])["reason"]:
            pass
        assert (row["state"], row["reason"], row["digest"]) == ("ready", LISTED, digest)
        with pytest.raises(InvalidArgument, match=r"multi_lora\.json"):
            await house.ask("remove", lora_id=NAME)
        failed = await house.ended("add", lora_id=NAME)
        assert "multi_lora.json" in failed["error"]
        shutil.rmtree(house.root / NAME)
        while (row := (await house.listed())[NAME])["reason"]:
            pass
        assert (row["state"], row["digest"]) == ("ready", digest)
        assert house.snapshot()["entries"][NAME]["digest"] == digest

    run(tmp_path, test, elsewhere={NAME: other})
