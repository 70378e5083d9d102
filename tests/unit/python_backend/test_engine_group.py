"""A model knows its group, and a group's state is its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from python_backend.engine import arguments
from python_backend.engine.arguments import EngineStartError
from python_backend.engine_group import EngineGroup
from python_backend.settings import CONFIG_VARIABLE, STATE_VARIABLE, SettingsError

SERVING = "engine: {model: m}\nadapters: {root: adapters}\npolicy: policy.yaml\n"


def triton(folder: Path, **parameters: str) -> dict[str, str]:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return {
        "model_repository": str(folder),
        "model_config": json.dumps({"parameters": values}),
    }


def test_the_only_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "serving.yaml").write_text(SERVING)
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "serving.yaml"))
    monkeypatch.setenv(STATE_VARIABLE, "/state")
    found = EngineGroup.from_triton(triton(tmp_path / "lora_gate"))
    assert (found.gate, found.engine) == ("lora_gate", "vllm_lora")
    assert found.settings.run_dir == found.server_run_dir == Path("/state/run")


def test_one_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm_lora_fin").mkdir()
    (tmp_path / "vllm_lora_fin" / "serving.yaml").write_text(SERVING)
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    monkeypatch.setenv(STATE_VARIABLE, "/state")
    args = triton(
        tmp_path / "lora_gate_fin",
        ENGINE_GROUP="fin",
        SETTINGS_FILE="../vllm_lora_fin/serving.yaml",
    )
    found = EngineGroup.from_triton(args)
    assert (found.gate, found.engine) == ("lora_gate_fin", "vllm_lora_fin")
    assert found.settings.run_dir == Path("/state/engines/fin/run")
    assert found.settings.staged_dir == Path("/state/engines/fin/staged")
    assert found.server_run_dir == Path("/state/run")
    monkeypatch.delenv(STATE_VARIABLE)
    own = EngineGroup.from_triton(args)
    assert own.server_run_dir == tmp_path / "vllm_lora_fin" / "state" / "run"


def test_settings_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: no such file"):
        EngineGroup.from_triton(triton(tmp_path, ENGINE_GROUP="fin", SETTINGS_FILE="none.yaml"))


@pytest.mark.parametrize(
    ("visible", "numbers", "chosen"),
    [(None, "1,0", "1,0"), ("4,5,6", "2,0", "6,4"), ("", "0", "0"), ("4,5", "", "4,5")],
)
def test_devices(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, numbers: str, chosen: str
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    monkeypatch.setattr(arguments.os, "environ", environment)
    arguments.choose_devices(numbers)
    assert environment["CUDA_VISIBLE_DEVICES"] == chosen


def test_a_device_that_is_not_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments.os, "environ", {"CUDA_VISIBLE_DEVICES": "4,5"})
    with pytest.raises(EngineStartError, match="DEVICES is 0,2, but CUDA_VISIBLE_DEVICES shows 2"):
        arguments.choose_devices("0,2")
