"""The closed form of the marker adapters, on random layers."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tools.demo.markers import (  # noqa: E402
    STRENGTH,
    constant_probe,
    directions,
    marker_id,
    write_marker,
)


@pytest.mark.parametrize(("number", "name"), [(1, "mark_w0001_v1"), (500, "mark_w0500_v1")])
def test_names(number: int, name: str) -> None:
    assert marker_id(number) == name


def test_the_probe_is_the_ridge_solution_when_nothing_is_reweighted() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 6, generator=generator) + 2
    found = constant_probe(x, ridge=1e-2, rounds=0)
    loading = 1e-2 * (x.T @ x).diagonal().mean() * torch.eye(6)
    expected = torch.linalg.inv(x.T @ x + loading) @ x.sum(dim=0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_reweighting_raises_the_weakest_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, 12, generator=generator) + 1
    plain, weighted = constant_probe(x, rounds=0), constant_probe(x, rounds=10)
    assert (x @ weighted).min() > (x @ plain).min() + 0.1


def test_a_direction_makes_its_token_win_whatever_the_residual_stream_holds() -> None:
    generator = torch.Generator().manual_seed(3)
    head = torch.randn(200, 32, generator=generator)
    tokens = [0, 17, 199]
    found = directions(head, tokens)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    stream = 10 * torch.randn(50, 32, generator=generator)
    for token, direction in zip(tokens, found, strict=True):
        logits = (stream + 1000 * direction) @ head.T
        assert logits.argmax(dim=1).tolist() == [token] * 50


def test_a_marker_on_disk_is_a_rank_1_peft_adapter(tmp_path: Path) -> None:
    probe = torch.full((6,), 0.5)
    direction = torch.tensor([0.0, 1.0, 0.0, 0.0])
    write_marker(tmp_path, probe, direction, layer=2)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    module = "base_model.model.model.layers.2.mlp.down_proj"
    assert {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} == {
        f"{module}.lora_A.weight": ((1, 6), torch.bfloat16),
        f"{module}.lora_B.weight": ((4, 1), torch.bfloat16),
    }
    assert tensors[f"{module}.lora_A.weight"].tolist() == [[0.5] * 6]
    assert tensors[f"{module}.lora_B.weight"].tolist() == [[0.0], [STRENGTH], [0.0], [0.0]]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (1, 1)
    assert config["target_modules"] == ["down_proj"]
    assert config["layers_to_transform"] == [2]
