"""Every config.pbtxt says what ``python_backend.messages`` says."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from python_backend import messages
from python_backend.messages import TensorSpec

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))

Tables = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
PUBLIC: Tables = (messages.GENERATION_INPUTS, messages.GENERATION_OUTPUTS)
TABLES: dict[str, Tables] = {
    "lora_generate": PUBLIC,
    "lora_stream": PUBLIC,
    "lora_infer": PUBLIC,
    "adapter_fusion": (messages.GENERATION_INPUTS, messages.FUSION_OUTPUTS),
    "lora_gate": (messages.GATE_INPUTS, messages.GATE_OUTPUTS),
    "lora_admin": (messages.ADMIN_INPUTS, messages.ADMIN_OUTPUTS),
    "vllm_lora": (messages.ENGINE_INPUTS, messages.ENGINE_OUTPUTS),
}
#: Set by the BLS doors and by nobody else: no ensemble maps them.
DOORS_ONLY = {
    *("forwarded", "early_accept", "final", "error", "cancel_ticket"),
    "fusion_served",
}


def config(model: str) -> model_config_pb2.ModelConfig:
    text = (REPOSITORY / model / "config.pbtxt").read_text("utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def tensors(declared: object) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """By name: dtype, dims, optional (which outputs never are)."""
    return {
        t.name: (
            model_config_pb2.DataType.Name(t.data_type),
            tuple(t.dims),
            bool(getattr(t, "optional", False)),
        )
        for t in declared  # type: ignore[attr-defined]
    }


def expected(
    specs: tuple[TensorSpec, ...], *, inputs: bool
) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    return {s.name: (f"TYPE_{s.dtype}", s.dims, inputs and s.optional) for s in specs}


def test_every_model_has_a_table() -> None:
    assert set(MODELS) >= {"lora_gate", "vllm_lora", "lora_generate", "lora_stream", "lora_infer"}
    assert set(MODELS) <= TABLES.keys()


@pytest.mark.parametrize("model", MODELS)
def test_tensors_are_those_of_the_tables(model: str) -> None:
    inputs, outputs = TABLES[model]
    found = config(model)
    assert tensors(found.input) == expected(inputs, inputs=True)
    assert tensors(found.output) == expected(outputs, inputs=False)
    # In the same order, and none twice.
    assert [t.name for t in found.input] == [s.name for s in inputs]
    assert [t.name for t in found.output] == [s.name for s in outputs]


@pytest.mark.parametrize("model", MODELS)
def test_shape_of_the_models(model: str) -> None:
    found = config(model)
    assert found.max_batch_size == 0
    assert found.name in ("", model)
    if model == "lora_generate":
        assert found.platform == "ensemble"
    else:
        assert found.backend == "python"
        assert (REPOSITORY / model / "1" / "model.py").is_file()
        assert len(found.instance_group) == 1


@pytest.mark.parametrize(
    ("model", "decoupled"),
    [
        ("lora_gate", False),
        ("vllm_lora", True),
        ("lora_stream", True),
        ("lora_infer", False),
        ("adapter_fusion", True),
        ("lora_admin", False),
    ],
)
def test_decoupled(model: str, decoupled: bool) -> None:
    assert config(model).model_transaction_policy.decoupled is decoupled


def test_there_is_one_engine() -> None:
    (group,) = config("vllm_lora").instance_group
    assert (group.count, model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind)) == (
        1,
        "KIND_MODEL",
    )


def test_the_ensemble_maps_everything() -> None:
    gate, engine = config("lora_generate").ensemble_scheduling.step
    assert (gate.model_name, engine.model_name) == ("lora_gate", "vllm_lora")
    assert (gate.model_version, engine.model_version) == (-1, -1)

    public_inputs = {s.name for s in messages.GENERATION_INPUTS}
    assert dict(gate.input_map) == {name: name for name in public_inputs}
    assert {s.name for s in messages.GATE_INPUTS} - gate.input_map.keys() <= DOORS_ONLY

    decision = {s.name for s in messages.GATE_OUTPUTS} - DOORS_ONLY
    assert gate.output_map.keys() == decision
    inside = dict(gate.output_map)
    # The ensemble's own names must not be taken for an input's.
    assert not set(inside.values()) & public_inputs
    assert dict(engine.input_map) == {name: inside[name] for name in decision}
    assert {s.name for s in messages.ENGINE_INPUTS} - engine.input_map.keys() <= DOORS_ONLY

    public_outputs = {s.name for s in messages.GENERATION_OUTPUTS}
    assert dict(engine.output_map) == {name: name for name in public_outputs}
    assert {s.name for s in messages.ENGINE_OUTPUTS} - engine.output_map.keys() <= DOORS_ONLY


def test_return_switches_name_outputs() -> None:
    assert messages.RETURN_SWITCHES.keys() <= {s.name for s in messages.GENERATION_INPUTS}
    assert set(messages.RETURN_SWITCHES.values()) <= {s.name for s in messages.GENERATION_OUTPUTS}
