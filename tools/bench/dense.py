"""The judge of mixtures: the demo's model by transformers, in float32, with dense weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from python_backend.adapters.target import Target
from python_backend.fusion.source import Source, Sources


class Judge:
    """A base model whose weights are changed and put back.

    Args:
        model_dir: its folder.
        target: the engine's modules, by which adapters are read.
    """

    def __init__(self, model_dir: Path, target: Target) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        self._layers = dict(self._model.named_modules())
        self._sources = Sources(target)

    @contextlib.contextmanager
    def dense(self, parts: Sequence[tuple[Path, float]]) -> Iterator[None]:
        """W + Σ wᵢ·sᵢ·Bᵢ·Aᵢ in every layer, for the block."""
        before: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for folder, weight in parts:
                for path, a, b, scale in _modules(self._sources.read(folder)):
                    matrix = self._layers[path].weight
                    before.setdefault(path, matrix.clone())
                    matrix += weight * scale * (b @ a)
            try:
                yield
            finally:
                for path, matrix in before.items():
                    self._layers[path].weight.copy_(matrix)

    @contextlib.contextmanager
    def adapted(self, folder: Path) -> Iterator[None]:
        """W·x + s·B·(A·x) in every layer of one adapter, as an engine computes it."""
        hooks = []
        for path, a, b, scale in _modules(self._sources.read(folder)):

            def add(
                _: Any, inputs: Any, output: Any, a: Any = a, b: Any = b, scale: float = scale
            ) -> Any:
                return output + scale * (inputs[0] @ a.T) @ b.T

            hooks.append(self._layers[path].register_forward_hook(add))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[len(ids), vocabulary], float32."""
        with torch.no_grad():
            found: torch.Tensor = self._model(torch.tensor([list(ids)])).logits[0].float()
        return found


def _modules(source: Source) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, float]]:
    with open(source.weights, "rb") as file:
        for path in source.modules:
            factors = source.factors(file, path)
            a, b = (torch.tensor(side, dtype=torch.float32) for side in (factors.a, factors.b))
            yield path, a, b, factors.scale
