"""The rendered repository: what Triton reads in it, and what keeps it from being written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

from python_backend import settings
from tests.contract.test_configs import MODELS
from tools.__main__ import app
from tools.render.repository import SOURCE

FLEET = """\
groups:
  finance:
    adapters: ["fin_*"]
    engine:
      gpus: [0, 1]
      settings: {engine: {tensor_parallel_size: 2}, limits: {n: 2}}
  service:
    adapters: ["svc_*"]
    engine: {gpus: [2]}
  other:
    adapters: ["qa_*"]
"""
SERVING = """\
engine: {model: model, max_model_len: 1024}
adapters: {root: adapters}
policy: policy.yaml
limits: {n: 4, logprobs: 3}
"""
#: A model that the memory plan has a formula for.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving.yaml").write_text(SERVING)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def render(folder: Path, text: str = FLEET) -> tuple[int, str, Path]:
    (folder / "fleet.yaml").write_text(text)
    out = folder / "models"
    flags = ["--fleet", str(folder / "fleet.yaml"), "--out", str(out)]
    done = CliRunner().invoke(app, ["render", "repository", *flags])
    return done.exit_code, done.output, out


def parsed(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text("utf-8"), model_config_pb2.ModelConfig())


@pytest.mark.parametrize(("group", "devices"), [("finance", "0,1"), ("service", "2")])
def test_each_group_has_every_model(folder: Path, group: str, devices: str) -> None:
    code, output, out = render(folder)
    assert code == 0, output
    own = {"ENGINE_GROUP": group, "SETTINGS_FILE": f"../vllm_lora_{group}/serving.yaml"}
    assert {p.name for p in out.iterdir() if p.name.endswith(group)} == {
        f"{model}_{group}" for model in MODELS
    }
    for model in MODELS:
        expected = parsed(SOURCE / model / "config.pbtxt")
        made = out / f"{model}_{group}"
        if model == "lora_generate":
            for step in expected.ensemble_scheduling.step:
                step.model_name += f"_{group}"
            assert (made / "1").is_dir()
        else:
            values = own | ({"DEVICES": devices} if model == "vllm_lora" else {})
            for key, value in values.items():
                expected.parameters[key].string_value = value
            source = SOURCE / model / "1" / "model.py"
            assert (made / "1" / "model.py").read_text() == source.read_text()
        assert parsed(made / "config.pbtxt") == expected
    if group == "finance":
        (instance,) = parsed(out / "vllm_lora_finance" / "config.pbtxt").instance_group
        assert instance.kind == model_config_pb2.ModelInstanceGroup.KIND_MODEL


def test_a_groups_settings_lie_over_the_shared_ones(folder: Path) -> None:
    _, _, out = render(folder)
    found = {
        group: settings.load(out / f"vllm_lora_{group}" / "serving.yaml")
        for group in ("finance", "service")
    }
    finance, service = found["finance"], found["service"]
    assert finance.engine == {**service.engine, "tensor_parallel_size": 2}
    assert service.engine["model"] == str(folder / "model")
    assert (finance.limits.n, service.limits.n, finance.limits.logprobs) == (2, 4, 3)
    # What they share: one catalog of adapters, one policy.
    assert finance.adapters.root == service.adapters.root == folder / "adapters"
    assert finance.policy == service.policy == folder / "policy.yaml"


def test_it_is_the_same_each_time_and_nothing_old_stays(folder: Path) -> None:
    def content(out: Path) -> dict[str, str]:
        return {
            str(path.relative_to(out)): path.read_text()
            for path in out.rglob("*")
            if path.is_file()
        }

    _, _, out = render(folder)
    first = content(out)
    assert render(folder)[0] == 0
    assert content(out) == first
    code, _, _ = render(folder, FLEET.replace("  service:", "  chat:"))
    assert code == 0
    assert {path.name.rsplit("_", 1)[1] for path in out.iterdir()} == {"finance", "chat"}
    assert not list(folder.glob(".models*"))


def test_a_folder_of_somebody_elses_is_left_alone(folder: Path) -> None:
    (folder / "models" / "theirs").mkdir(parents=True)
    code, output, out = render(folder)
    assert code == 2
    assert "holds theirs, which was not rendered; choose another --out" in output
    assert [path.name for path in out.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("gpus: [0, 1]", "gpus: [0]", 5, "make 2 workers; list as many"),
        ("gpus: [0, 1]", "gpus: [0, 0]", 5, "one stands here twice; remove it"),
        ("gpus: [2]", "gpus: [1]", 9, "GPU 1 is shared by finance (0.9) and service (0.9)"),
        ("limits: {n: 2}", "limitz: {n: 2}", 6, "limitz: Extra inputs are not permitted"),
        ("limits: {n: 2}", "limits: {n: 0}", 6, "limits.n: Input should be greater than 0"),
        ("limits: {n: 2}", "memory_limit_bytes: 1000", 6, "memory_limit_bytes is 1000"),
        ("limits: {n: 2}", "engine: {max_lora_rank: 24}", 6, "the key 'engine' is given twice"),
        ("groups:", "serving: none.yaml\ngroups:", 1, "none.yaml cannot be read"),
    ],
)
def test_what_would_not_start_is_not_rendered(
    folder: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in FLEET
    code, output, out = render(folder, FLEET.replace(old, new, 1))
    assert code == 2
    assert f"fleet.yaml:{line}: " in output, output
    assert says in output, output
    assert not out.exists()


def test_without_an_engine_there_is_nothing_to_render(folder: Path) -> None:
    fleet: dict[str, Any] = yaml.safe_load(FLEET)
    for group in fleet["groups"].values():
        group.pop("engine", None)
    code, output, _ = render(folder, yaml.safe_dump(fleet))
    assert code == 2
    assert "no group has an engine; write engine: {}" in output
