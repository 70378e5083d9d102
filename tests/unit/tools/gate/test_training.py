"""Training: the served formula is the trained one, and a gate learns what is in the examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from python_backend.fusion import embeddings
from python_backend.fusion.gating import forward
from tests.unit.python_backend.fusion.gate_house import HIDDEN, make_gate, make_model, random
from tools.gate import figures, trainer
from tools.gate.examples import Example
from tools.gate.problem import GateTrainingError
from tools.gate.trainer import Plan

NAMES = ("fin_risk_v1", "svc_chat_v1")
#: Words are token ids: 1 to 9 speak of risk, 11 to 19 of service, the rest of neither.
RISK, SERVICE, OTHER = range(1, 10), range(11, 20), range(21, 50)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def encode(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def prompts(count: int) -> list[Example]:
    draw = np.random.default_rng(5)
    found = []
    for _ in range(count):
        neither = [str(word) for word in draw.choice(OTHER, 4)]
        risk = [str(word) for word in draw.choice(RISK, 2)]
        service = [str(word) for word in draw.choice(SERVICE, 2)]
        found += [
            Example(" ".join(neither), {"base": 1.0}),
            Example(" ".join(neither + risk), {"fin_risk_v1": 1.0}),
            Example(" ".join(neither + service), {"svc_chat_v1": 1.0}),
            Example(" ".join(risk + neither + service), {"fin_risk_v1": 0.5, "svc_chat_v1": 0.5}),
        ]
    return found


def test_torch_and_numpy_compute_the_same() -> None:
    gate = make_gate()
    tokens = random(6, HIDDEN, seed=8)
    parts = {name: torch.from_numpy(getattr(gate, name)) for name in ("query", "keys", "values")}
    parts["readout"] = torch.from_numpy(gate.readout).log()
    x = tokens / np.sqrt(np.mean(tokens**2, axis=1, keepdims=True))
    padded = np.concatenate([x, np.ones((3, HIDDEN), np.float32)])[None]
    real = torch.tensor([[1.0] * 6 + [0.0] * 3])
    allowed = torch.tensor([[True, True, False, True]])
    found = trainer.forward(parts, torch.from_numpy(padded), real, allowed)[0]
    np.testing.assert_allclose(found[[0, 1, 3]], forward(gate, tokens, [0, 1, 3]), atol=1e-5)
    assert float(found[2]) == 0.0


def test_a_gate_learns_its_examples(tmp_path: Path) -> None:
    make_model(tmp_path, hidden=64)
    rows = embeddings.open_model(tmp_path)
    plan = Plan(
        epochs=60, batch=16, learning_rate=1e-2, weight_decay=0.0, word_dropout=0.0, forbidden=0.6
    )
    gate = trainer.train(prompts(40), NAMES, rows, encode, plan)
    again = trainer.train(prompts(40), NAMES, rows, encode, plan)
    np.testing.assert_array_equal(gate.query, again.query)
    unseen = prompts(50)[-40:]
    found = figures.measure(gate, rows, encode, unseen)
    assert found.accuracy > 0.9
    assert found.weight_error < 0.25
    # What may not be used is base's.
    risk = [example.prompt for example in unseen if example.target.keys() == {"fin_risk_v1"}]
    left = [gate.weights(rows.rows(encode(text)), {"svc_chat_v1"})["base"] for text in risk]
    assert np.mean(left) > 0.7


def test_calibration_changes_how_sure_a_gate_is_and_nothing_else(tmp_path: Path) -> None:
    make_model(tmp_path)
    rows = embeddings.open_model(tmp_path)
    gate = make_gate(rows.digest)
    # Of the same prompt half the examples say one thing and half another.
    torn = [Example("1 2", {"fin_risk_v1": 1.0}), Example("1 2", {"svc_chat_v1": 1.0})] * 5
    found = trainer.calibrated(gate, torn, rows, encode)
    assert found.readout[0] != gate.readout[0]
    assert found.readout[1] == gate.readout[1]
    np.testing.assert_array_equal(found.keys, gate.keys)
    assert trainer.calibrated(gate, [], rows, encode) is gate


def test_the_calibration_error_by_hand() -> None:
    assert figures.calibration_error([1.0, 1.0], [1.0, 1.0]) == 0.0
    # Two bins: |0.95 - 0.5| for two prompts, |0.55 - 1| for one.
    found = figures.calibration_error([0.95, 0.95, 0.55], [1.0, 0.0, 1.0])
    assert found == pytest.approx((2 * 0.45 + 0.45) / 3)


def test_nothing_to_learn(tmp_path: Path) -> None:
    make_model(tmp_path)
    rows = embeddings.open_model(tmp_path)
    with pytest.raises(GateTrainingError, match="no examples for an adapter"):
        trainer.train([Example("1", {"base": 1.0})], (), rows, encode, Plan())
