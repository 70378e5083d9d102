"""The committed adapters, by their headers: no model is loaded."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tools.demo.examples import ADAPTERS
from tools.demo.folder import TRAINED

RANK, LAYERS, HIDDEN, KEYS = 8, 30, 576, 192
OUTPUTS = {"q_proj": HIDDEN, "k_proj": KEYS, "v_proj": KEYS, "o_proj": HIDDEN}


def header(file: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file: 8 bytes of length, then the text."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        found: dict[str, Any] = json.loads(stream.read(length))
    found.pop("__metadata__", None)
    return found


@pytest.mark.parametrize("lora_id", ADAPTERS)
def test_weights(lora_id: str) -> None:
    file = TRAINED / lora_id / "adapter_model.safetensors"
    assert file.stat().st_size <= 2 * 1024**2
    expected = {}
    for layer in range(LAYERS):
        for module, outputs in OUTPUTS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            expected[f"{name}.lora_A.weight"] = ("BF16", [RANK, HIDDEN])
            expected[f"{name}.lora_B.weight"] = ("BF16", [outputs, RANK])
    found = {name: (tensor["dtype"], tensor["shape"]) for name, tensor in header(file).items()}
    assert found == expected


@pytest.mark.parametrize("lora_id", ADAPTERS)
def test_config(lora_id: str) -> None:
    text = (TRAINED / lora_id / "adapter_config.json").read_text(encoding="utf-8")
    config = json.loads(text)
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    assert (config["r"], config["lora_alpha"]) == (8, 16)
    assert config["target_modules"] == sorted(OUTPUTS)
    assert (config["bias"], config["use_dora"], config["use_rslora"]) == ("none", False, False)
    assert '"/' not in text  # no path of the machine that trained it


def test_no_two_adapters_are_the_same() -> None:
    files = [TRAINED / lora_id / "adapter_model.safetensors" for lora_id in ADAPTERS]
    assert len({file.read_bytes() for file in files}) == len(ADAPTERS)
