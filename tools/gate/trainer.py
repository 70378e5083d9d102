"""Training the gate: the formula of ``python_backend.fusion.gating`` in torch, on the CPU."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from python_backend.adapters.naming import BASE
from python_backend.fusion.embeddings import Embeddings
from python_backend.fusion.gating import Gate
from tools.gate.examples import Example
from tools.gate.problem import GateTrainingError

if TYPE_CHECKING:
    from torch import Tensor

Encode = Callable[[str], list[int]]
Advance = Callable[[int, int], None]

WIDTH = 32
#: Tokens of a prompt that count in training.
_MOST_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long and how hard; the defaults take seconds for a thousand short prompts."""

    epochs: int = 80
    batch: int = 32
    learning_rate: float = 5e-3
    weight_decay: float = 0.2
    #: Share of words left out of a prompt, and of examples for which some adapters are forbidden.
    word_dropout: float = 0.3
    forbidden: float = 0.6
    seed: int = 7


def train(
    examples: list[Example],
    names: tuple[str, ...],
    embeddings: Embeddings,
    encode: Encode,
    plan: Plan,
    advance: Advance = lambda done, total: None,
) -> Gate:
    """A gate trained on ``examples``; the same for the same seed, versions and machine.

    Raises:
        GateTrainingError: there is nothing to train on, or it went astray.
    """
    import torch

    if not examples or not names:
        raise GateTrainingError("there are no examples for an adapter; give some")
    rng = np.random.default_rng(plan.seed)
    generator = torch.Generator().manual_seed(plan.seed)
    order = {name: at for at, name in enumerate((BASE, *names))}
    tokens = [encode(example.prompt)[:_MOST_TOKENS] for example in examples]
    targets = np.zeros((len(examples), len(order)), np.float32)
    for row, example in enumerate(examples):
        for name, weight in example.target.items():
            targets[row, order[name]] = weight
    model = _parameters(embeddings.hidden, len(order), generator)
    optimizer = torch.optim.AdamW(
        list(model.values()), lr=plan.learning_rate, weight_decay=plan.weight_decay
    )
    batches = (len(examples) + plan.batch - 1) // plan.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.learning_rate, total_steps=plan.epochs * batches
    )
    for epoch in range(plan.epochs):
        for chosen in np.array_split(rng.permutation(len(examples)), batches):
            x, real = _batch([tokens[at] for at in chosen], embeddings, plan.word_dropout, rng)
            allowed, wanted = _forbid(targets[chosen], plan.forbidden, rng)
            found = forward(model, x, real, allowed)
            loss = -(wanted * found.clamp_min(1e-9).log()).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(model.values()), 1.0)
            optimizer.step()
            schedule.step()
        advance(epoch + 1, plan.epochs)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in model.values()):
        raise GateTrainingError("the training went astray; lower --learning-rate")
    arrays = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in model.items()}
    arrays["readout"] = np.exp(arrays["readout"])
    return Gate(names=names, base=embeddings.digest, **arrays)


def calibrated(gate: Gate, examples: list[Example], embeddings: Embeddings, encode: Encode) -> Gate:
    """``gate`` as sure of itself as it is right on ``examples``, which it was not trained on.

    Temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", §4.2): of all that
    has been learnt only the sharpness of the weights is changed.
    """
    rows = [embeddings.rows(encode(example.prompt)[:_MOST_TOKENS]) for example in examples]

    def sharpened(factor: float) -> Gate:
        readout = gate.readout * np.array([factor, 1.0], np.float32)
        return dataclasses.replace(gate, readout=readout)

    def loss(factor: float) -> float:
        total, candidate = 0.0, sharpened(factor)
        for row, example in zip(rows, examples, strict=True):
            found = candidate.weights(row, gate.names)
            for name, weight in example.target.items():
                total -= weight * math.log(max(found.get(name, 0.0), 1e-9))
        return total

    return sharpened(min(np.geomspace(0.25, 8.0, 26), key=loss)) if examples else gate


def _parameters(hidden: int, choices: int, generator: Any) -> dict[str, Tensor]:
    import torch

    def normal(*shape: int, scale: float) -> Tensor:
        tensor: Tensor = torch.randn(*shape, generator=generator) * scale
        return tensor.requires_grad_()

    return {
        "query": normal(hidden, WIDTH, scale=hidden**-0.5),
        "keys": normal(choices, WIDTH, scale=1.0),
        "values": normal(choices, WIDTH, scale=1.0),
        # As logarithms, so that both stay above 0.
        "readout": torch.tensor([1.0, 0.0], requires_grad=True),
    }


def forward(model: dict[str, Tensor], x: Tensor, real: Tensor, allowed: Tensor) -> Tensor:
    """The weights [batch, choices]; see ``gating`` for the formula.

    Args:
        x: normalised token embeddings [batch, tokens, hidden].
        real: 1 for tokens, 0 for padding [batch, tokens].
        allowed: whether a choice may have a weight [batch, choices]; base always may.
    """
    narrow = model["keys"].shape[1] ** -0.5
    sharpness, advance = model["readout"].exp()
    scores = (x @ model["query"] @ model["keys"].T) * narrow
    attention = scores.masked_fill(~allowed[:, None, :], -1e9).softmax(-1)
    says = (1.0 - attention[..., 0]) * real
    mixed = (says[..., None] * (attention @ model["values"])).sum(1)
    pooled = (mixed + advance * model["values"][0]) / (says.sum(1, keepdim=True) + advance)
    logits = (pooled @ model["keys"].T) * (sharpness * narrow)
    return logits.masked_fill(~allowed, -1e9).softmax(-1)


def _batch(
    prompts: list[list[int]], embeddings: Embeddings, dropout: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    import torch

    longest = max(len(ids) for ids in prompts)
    x = np.zeros((len(prompts), longest, embeddings.hidden), np.float32)
    real = np.zeros((len(prompts), longest), np.float32)
    for row, ids in enumerate(prompts):
        rows = embeddings.rows(ids)
        x[row, : len(rows)] = rows
        real[row, : len(rows)] = rng.random(len(rows)) >= dropout
    x /= np.maximum(np.sqrt(np.mean(x**2, axis=-1, keepdims=True)), 1e-6)
    return torch.from_numpy(x), torch.from_numpy(real)


def _forbid(
    targets: np.ndarray[Any, Any], share: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Forbids adapters now and then, as a policy does: what they would have had is base's."""
    import torch

    allowed = np.ones(targets.shape, bool)
    some = rng.random(len(targets)) < share
    allowed[some] = rng.random((int(some.sum()), targets.shape[1])) < 0.5
    allowed[:, 0] = True
    wanted = np.where(allowed, targets, 0.0).astype(np.float32)
    wanted[:, 0] += 1.0 - wanted.sum(1)
    return torch.from_numpy(allowed), torch.from_numpy(wanted)
