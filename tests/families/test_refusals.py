"""What a live engine names as layers that it cannot adapt is refused with its reason."""

from __future__ import annotations

import json

import pytest

from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.target import ModuleShape, Target
from python_backend.adapters.validation import validate_bytes
from tests.badadapters import encode, good

_EXPERTS = "model.layers.1.mlp.experts"


def _target(prefixes: tuple[tuple[str, str], ...] = ()) -> Target:
    modules = {"model.layers.0.self_attn.q_proj": ModuleShape(576, 576)}
    refused = {_EXPERTS: "adapters of grouped experts are not supported"}
    return Target(modules, 16, prefixes, refused=refused)


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        (_EXPERTS, True),
        (f"{_EXPERTS}.base_layer", True),
        (f"{_EXPERTS}.0.gate_proj", True),
        (f"{_EXPERTS}_2", False),
        ("model.layers.1.mlp", False),
        ("model.layers.0.self_attn.q_proj", False),
    ],
)
def test_a_refusal_covers_all_below_it(path: str, refused: bool) -> None:
    assert (_target().refusal(path) is not None) == refused


def test_a_refusal_is_looked_up_by_the_engines_own_name() -> None:
    target = _target((("transformer.", "model."),))
    assert target.refusal("transformer.layers.1.mlp.experts.3.up_proj") is not None


def test_an_adapter_with_such_a_layer_is_refused_with_the_reason() -> None:
    adapter = good(layers=(0,), modules=("self_attn.q_proj",))
    adapter.add(f"{_EXPERTS}.0.gate_proj", (576, 64), 4)
    with pytest.raises(AdapterRejected) as refusal:
        validate_bytes(
            json.dumps(adapter.config).encode(), encode(adapter.tensors), _target(), 1 << 26
        )
    assert refusal.value.reason_code == "unsupported_feature"
    assert "grouped experts are not supported" in refusal.value.sentence
    assert "layers.1.mlp.experts.0.gate_proj" in refusal.value.sentence
