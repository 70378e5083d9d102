"""``tools doctor`` over real folders: what is gathered, and how it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from python_backend.memory_plan import Model
from tests.badadapters import good
from tests.unit.tools.doctor.house import LLAMA
from tools.__main__ import app
from tools.doctor import gather, machine
from tools.doctor.facts import Facts
from tools.signing.command import sign_secretly

KEY = "fin-1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A server's folder, with a model whose weights are a few bytes."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    (model / "model.safetensors").write_bytes(b"\0" * 2048)
    (model / "tokenizer.json").write_text("{}")
    good().write(tmp_path / "adapters" / "fin_risk_v1")
    (tmp_path / "policy.yaml").write_text(
        f"version: 1\ndepartments: {{fin: {{adapters: ['fin_*']}}}}\n"
        f"principals: [{{name: app, department: fin, api_key_sha256: ['{'a' * 64}']}}]\n"
    )
    write(tmp_path)
    return tmp_path


def write(home: Path, **sections: Any) -> None:
    body: dict[str, Any] = {"engine": {"model": "model"}, "adapters": {"root": "adapters"}}
    (home / "serving.yaml").write_text(
        yaml.safe_dump({**body, "policy": "policy.yaml", **sections})
    )


def facts(home: Path, **environment: str) -> Facts:
    return gather.gather(
        home / "serving.yaml",
        host="127.0.0.1",
        ports=None,
        state_dir=None,
        environment={**os.environ, **environment},
    )


def doctor(home: Path, *arguments: str) -> Result:
    command = ["doctor", "--config", str(home / "serving.yaml"), "--skip", "ports", *arguments]
    return CliRunner().invoke(app, command)


def test_what_is_gathered(home: Path) -> None:
    (home / "adapters" / "Fin Risk").mkdir()
    (home / "adapters" / "风控").mkdir()
    (home / "adapters" / "svc_chat_v1").mkdir()
    found = facts(home)
    assert found.settings is not None and found.settings_problem == ""
    assert found.model.shape == Model.of(LLAMA)
    assert (found.model.tokenizer, found.model.chat_template) == (True, False)
    assert found.model.weights == {"model.safetensors": 2048}
    empty, whole = sorted(found.adapters.folders, key=lambda folder: folder.size_bytes)
    assert (whole.lora_id, whole.problem, whole.rank) == ("fin_risk_v1", "", 4)
    assert whole.size_bytes == (
        (home / "adapters" / "fin_risk_v1" / "adapter_model.safetensors").stat().st_size
    )
    assert (empty.lora_id, "adapter_config.json" in empty.problem) == ("svc_chat_v1", True)
    assert found.adapters.strangers == ("Fin Risk", "风控")
    assert found.engine_names is not None
    assert {"model", "max_loras", "tensor_parallel_size"} <= found.engine_names
    assert found.machine.shm_bytes and found.machine.memory_bytes and found.machine.cores
    assert found.versions.vllm and found.versions.torch and found.versions.numpy


def test_files_of_a_model_that_is_not_whole(home: Path) -> None:
    model = home / "model"
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "config.json").write_text("{")
    found = facts(home).model
    assert found.pointers == ("model.safetensors",)
    assert found.missing == ("model-2.safetensors",)
    assert found.config is None and "not JSON" in found.config_problem
    assert found.shape is None and found.shape_problem


def test_files_that_cannot_be_used(home: Path) -> None:
    (home / "state").mkdir()
    (home / "state" / "operator.json").write_text('{"version": 2}')
    (home / "sources.yaml").write_text("s3: {}")
    write(
        home,
        sources={"credentials_file": "sources.yaml"},
        fusion={"auto": {"gate": "gate"}},
    )
    (home / "sources.yaml").chmod(0o644)
    told = json.loads(doctor(home, "--json").output)["findings"]
    found = [f for f in told if f["check"] in ("settings", "state") and f["result"] != "ok"]
    assert [f["result"] for f in found] == ["warning", "warning", "failure"]
    names = ("others may read it", "fusion.auto.gate", "operator.json: version")
    assert all(name in f["reason"] for name, f in zip(names, found, strict=True))
    assert "train-gate" in found[1]["cure"] and "restore it" in found[2]["cure"]


def test_signatures(home: Path) -> None:
    keys = home / "keys.yaml"
    new = ["signing-keys", "new", "--keys", str(keys), "--key-id", KEY, "--for", "fin_*"]
    assert CliRunner().invoke(app, new).exit_code == 0
    write(home, signing={"keys_file": "keys.yaml", "require": ["fin_*"]})

    def judged() -> tuple[bool | None, str]:
        (folder,) = facts(home).adapters.folders
        return folder.signed, folder.signature_problem.split(":")[0]

    assert judged() == (None, "unsigned")
    folder = home / "adapters" / "fin_risk_v1"
    sign_secretly(folder, folder.name, keys, KEY)
    assert judged() == (True, "")
    (folder / "extra.txt").write_text("x")
    assert judged() == (None, "bad_signature")
    keys.chmod(0o644)
    assert "others may read it" in facts(home).adapters.keys_problem


def test_exit_codes_and_json(home: Path) -> None:
    write(home, engine={"model": "model", "max_num_seq": 4})
    done = doctor(home, "--json")
    told = json.loads(done.output)
    assert (done.exit_code, told["result"]) == (1, "failure")
    assert {"check", "result", "reason", "cure"} == told["findings"][0].keys()
    assert sum(told["counts"].values()) == len(told["findings"])
    assert [f["cure"] for f in told["findings"] if f["check"] == "engine"] == [
        "did you mean max_num_seqs?"
    ]
    assert "did you mean max_num_seqs?" in doctor(home).output
    # All that stands in the way is what is not to be looked at.
    skips = {f["check"] for f in told["findings"] if f["result"] == "failure"}
    options = [part for check in skips for part in ("--skip", check)]
    assert doctor(home, *options).exit_code == 0
    assert doctor(home, "--skip", "weather").exit_code == 2
    assert doctor(home, "--http-port", "0").exit_code == 2


@pytest.mark.parametrize("text", [None, "[", "engine: 3", "adapters: {root: nowhere}\npolicy: x"])
def test_what_is_missing_is_a_finding(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "serving.yaml").write_text(text)
    done = doctor(tmp_path, "--json")
    assert done.exit_code == 1
    failed = {f["check"] for f in json.loads(done.output)["findings"] if f["result"] == "failure"}
    assert failed & {"settings", "policy", "adapters"}


def test_network_file_systems(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nfiler:/lora {tmp_path}/my\\040models nfs4 rw 0 0\n")
    assert machine.remote(tmp_path / "my models" / "adapters", mounts) == "nfs4"
    assert machine.remote(tmp_path / "my modelss", mounts) == ""
    assert machine.remote(tmp_path, tmp_path / "none") == ""
