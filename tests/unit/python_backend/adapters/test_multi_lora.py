"""multi_lora.json: what it may say, and the sentences that refuse the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backend.adapters import multi_lora
from python_backend.settings import SettingsError

ALIASES = {"doll": "fin_doll_v1", "sheep": "fin_sheep_v2"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / multi_lora.MULTI_LORA_JSON


def load(file: Path, body: Any) -> dict[str, Path]:
    file.write_text(body if isinstance(body, str) else json.dumps(body), "utf-8")
    return multi_lora.load(file, ALIASES, file.parent / "root")


def refusal(file: Path, body: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(file, body)
    text = str(caught.value)
    assert text.startswith(f"{file}: ")
    return text.removeprefix(f"{file}: ")


def test_no_file_is_no_adapter(file: Path) -> None:
    assert multi_lora.load(file, ALIASES, file.parent) == {}


def test_lora_ids_and_aliases(file: Path) -> None:
    body = {"fin_risk_v1": "/a/risk", "doll": "/a/Doll"}
    assert load(file, body) == {"fin_risk_v1": Path("/a/risk"), "fin_doll_v1": Path("/a/Doll")}


def test_a_relative_folder_is_the_working_directorys(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "root")
    assert load(file, {"doll": "./w/doll"}) == {"fin_doll_v1": tmp_path / "root" / "w" / "doll"}


def test_a_folder_of_any_name(file: Path) -> None:
    assert load(file, {"doll": "/模型/doll"}) == {"fin_doll_v1": Path("/模型/doll")}


@pytest.mark.parametrize("name", ["bactrian", "base", "Fin_Risk_v1", "", "fin_risk"])
def test_a_name_that_is_neither_says_the_cure(file: Path, name: str) -> None:
    text = refusal(file, {name: "/a"})
    assert text == (
        f"{name!r}: not a lora_id (department_business_version, such as fin_risk_v2); "
        "rename it, or map the name to a lora_id under `aliases` in serving.yaml"
    )


@pytest.mark.parametrize("folder", [3, None, "", ["/a"]])
def test_a_folder_is_a_path(file: Path, folder: Any) -> None:
    assert refusal(file, {"doll": folder}) == "'doll': must be the path of the adapter's folder"


def test_one_adapter_under_two_names(file: Path) -> None:
    text = refusal(file, {"doll": "/a", "fin_doll_v1": "/b"})
    assert text == "'fin_doll_v1': fin_doll_v1 is named twice; remove one of the two"


def test_a_folder_of_the_root_is_the_roots(file: Path) -> None:
    root = file.parent / "root"
    (root / "fin_doll_v1").mkdir()
    (file.parent / "doll").mkdir()
    assert load(file, {"doll": str(file.parent / "doll")}) == {"fin_doll_v1": file.parent / "doll"}
    assert load(file, {"doll": str(root / "fin_doll_v1")}) == {}
    (file.parent / "link").symlink_to(root / "fin_doll_v1")
    assert load(file, {"doll": str(file.parent / "link")}) == {}


@pytest.mark.parametrize(
    ("body", "says"),
    [("{", "not valid JSON"), ("[]", "not a JSON object"), ('{"a": "/", "a": "/"}', "twice")],
)
def test_what_is_no_object(file: Path, body: str, says: str) -> None:
    assert says in refusal(file, body)
