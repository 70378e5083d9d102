"""The folder that a load test's server is started from, and what may be wrong with another's."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ensemble.access import load_policy
from loadtests import configurations
from loadtests.cast import Cast, read_cast
from loadtests.configurations import CONFIGURATIONS, PROTECTED, UNPROTECTED
from loadtests.house import build_house
from loadtests.problem import LoadProblem
from loadtests.target import attached
from python_backend.adapters import signing, signing_keys
from python_backend.settings import load
from tools.demo.folder import PARTS
from tools.demo.settings import SERVING, key_hash


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A demo with five markers, whose weights are their names."""
    folder = tmp_path / "demo"
    for part in PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).touch()
    (folder / "adapters").unlink()
    words = {f"mark_w{n:04d}_v1": f"word{n}" for n in range(1, 6)}
    for name in words:
        (folder / "adapters" / name).mkdir(parents=True)
        (folder / "adapters" / name / "adapter_model.safetensors").write_text(name)
    (folder / "markers.json").write_text(json.dumps(words))
    (folder / "serving.yaml").write_text(SERVING)
    return folder


def build(tmp_path: Path, demo: Path, configuration: str = PROTECTED, **more: Any) -> Cast:
    folder = tmp_path / "house"
    folder.mkdir()
    given: dict[str, Any] = {"markers": {"fin": 1, "svc": 2}, "spares": 1, "settings": {}, **more}
    return build_house(folder, demo, protections=CONFIGURATIONS[configuration], **given)


def test_departments_have_markers_under_their_own_names(tmp_path: Path, demo: Path) -> None:
    cast = build(tmp_path, demo)
    house = tmp_path / "house"
    found = {path.parent.name: path.read_text() for path in house.glob("adapters/*/*.safetensors")}
    assert found == {
        "fin_w0001_v1": "mark_w0001_v1",
        "svc_w0001_v1": "mark_w0002_v1",
        "svc_w0002_v1": "mark_w0003_v1",
    }
    assert [path.name for path in (house / "spares").iterdir()] == ["mark_w0004_v1"]
    assert cast.words == {"word1", "word2", "word3", "word4"}
    assert stat.S_IMODE((house / "keys.json").stat().st_mode) == 0o600
    policy = load_policy(house / "policy.yaml")
    keys = json.loads((house / "keys.json").read_text())
    fin = policy.by_key_digest(bytes.fromhex(key_hash(keys["fin"])))
    assert fin is not None and policy.may_use(fin[1], "fin_w0001_v1")
    assert not policy.may_use(fin[1], "svc_w0001_v1")


def test_finances_adapters_are_signed(tmp_path: Path, demo: Path) -> None:
    build(tmp_path, demo)
    house = tmp_path / "house"
    signed = [path.parent.name for path in house.glob("adapters/*/adapter.sig.json")]
    assert signed == ["fin_w0001_v1"]
    settings = load(house / "serving.yaml").signing
    assert (settings.keys_file, settings.require) == (house / "signing-keys.yaml", ("fin_*",))
    keys = signing_keys.load(house / "signing-keys.yaml")
    signature = signing.read((house / "adapters" / signed[0] / "adapter.sig.json").read_bytes())
    # Raises if the server would not take it.
    signing.verify(signature, keys.find, signed[0], time.time())


def test_its_settings_are_settings(tmp_path: Path, demo: Path) -> None:
    build(tmp_path, demo, settings={"engine": {"max_loras": 8}})
    settings = load(tmp_path / "house" / "serving.yaml")
    assert settings.engine["max_loras"] == 8
    assert settings.engine["max_num_seqs"] == 16
    assert settings.engine["model"] == str(demo / "model")
    assert settings.adapters.add_from == (tmp_path / "house" / "spares",)
    assert settings.access.control == "strict"
    assert settings.audit.enabled and settings.breakers.switch_rate.enforce


def test_unprotected_is_off_what_settings_turn_off(tmp_path: Path, demo: Path) -> None:
    build(tmp_path, demo, UNPROTECTED)
    settings = load(tmp_path / "house" / "serving.yaml")
    assert settings.access.control == "off"
    assert not settings.audit.enabled
    assert settings.admission.reserve_seats == settings.admission.reserve_slots == 0
    assert settings.admission.burst is None
    assert settings.observation.canary_s == 0
    assert settings.breakers.load_latency.open == 2.0
    breakers = settings.breakers
    assert not any(
        rule.enforce
        for rule in (
            breakers.switch_rate, breakers.fragmentation, breakers.load_latency, breakers.routing
        )
    )  # fmt: skip
    policy = yaml.safe_load((tmp_path / "house" / "policy.yaml").read_text())
    assert [*policy["departments"]] == ["everyone"]


def test_both_name_the_same_protections() -> None:
    on, off = CONFIGURATIONS[PROTECTED], CONFIGURATIONS[UNPROTECTED]
    assert on.keys() == off.keys()
    assert all(on.values())
    assert not any(off.values())
    assert configurations.settings(on) == {}


def test_too_few_markers(tmp_path: Path, demo: Path) -> None:
    with pytest.raises(LoadProblem, match=r"has 5 markers and this needs 9: .*--markers 9"):
        build(tmp_path, demo, markers={"fin": 8})


def test_no_demo(tmp_path: Path) -> None:
    with pytest.raises(LoadProblem, match=r"is no demo folder; `python -m tools demo --out"):
        build(tmp_path, tmp_path / "nothing")


def test_a_house_can_be_served_elsewhere(tmp_path: Path, demo: Path) -> None:
    cast = build(tmp_path, demo)
    house = tmp_path / "house"
    server = attached("host:1,2,3", house, {"fin": 1, "svc": 1}, 1)
    assert (server.http, server.grpc, server.metrics) == ("host:1", "host:2", "host:3")
    assert server.cast.members == {"fin": cast.of("fin"), "svc": cast.of("svc", 1)}
    assert server.cast.spares == cast.spares


@pytest.mark.parametrize("address", ["host", "host:1", "host:1,2", "host:1,2,x", ":1,2,3"])
def test_addresses_have_three_ports(tmp_path: Path, address: str) -> None:
    with pytest.raises(LoadProblem, match="must be HOST:HTTP,GRPC,METRICS"):
        attached(address, tmp_path, {}, 0)


def test_a_folder_that_lacks_what_a_scenario_needs(tmp_path: Path, demo: Path) -> None:
    build(tmp_path, demo)
    house = tmp_path / "house"
    with pytest.raises(LoadProblem, match=r"\(fin 2\) and 0 spares; it has .*fin 1, svc 2"):
        attached("host:1,2,3", house, {"fin": 2}, 0)
    with pytest.raises(LoadProblem, match=r"and 2 spares; it has .* and 1\."):
        attached("host:1,2,3", house, {"fin": 1}, 2)


def test_a_folder_without_markers(tmp_path: Path, demo: Path) -> None:
    build(tmp_path, demo)
    house = tmp_path / "house"
    (house / "markers.json").write_text("{}")
    with pytest.raises(LoadProblem, match=r"no markers that a key may use.*demo --markers"):
        read_cast(house)


def test_keys_of_another_folder(tmp_path: Path, demo: Path) -> None:
    build(tmp_path, demo)
    house = tmp_path / "house"
    (house / "keys.json").write_text(json.dumps({"fin": "another"}))
    with pytest.raises(LoadProblem, match="the key 'fin' is not in the policy beside it"):
        read_cast(house)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_files_that_are_none(tmp_path: Path, demo: Path, text: str) -> None:
    build(tmp_path, demo)
    file = tmp_path / "house" / "markers.json"
    file.write_text(text)
    with pytest.raises(LoadProblem, match=r"markers\.json: "):
        read_cast(file.parent)
