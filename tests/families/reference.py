"""What transformers and peft say of the same models: the judge of the engine's answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel


@contextmanager
def adapted(base: torch.nn.Module, folder: Path | None) -> Iterator[torch.nn.Module]:
    """The base model with the adapter in ``folder``, or the base model itself."""
    if folder is None:
        yield base
    else:
        yield PeftModel.from_pretrained(copy.deepcopy(base), str(folder)).eval()


@torch.no_grad()
def mixture(
    base: torch.nn.Module, folders: Mapping[str, Path], parts: Sequence[tuple[str, float]]
) -> torch.nn.Module:
    """The base model with dense weights W + Σ wᵢ·ΔWᵢ, each ΔWᵢ as peft merges it."""
    mixed = copy.deepcopy(base)
    changed = dict(mixed.named_parameters())
    for name, weight in parts:
        alone = PeftModel.from_pretrained(copy.deepcopy(base), str(folders[name]))
        merged = dict(alone.merge_and_unload().named_parameters())
        for path, parameter in base.named_parameters():
            changed[path] += weight * (merged[path] - parameter)
    return mixed.eval()


@torch.no_grad()
def judge(
    model: torch.nn.Module, prompt: list[int], answer: list[int]
) -> tuple[list[int], list[float], float]:
    """The greedy continuation along ``answer``.

    If ``answer`` is what greedy decoding gives, then at each of its positions it is the best
    token after all before it, and the other way round: one pass over the whole settles it.

    Returns:
        the best token at each position; the log-probability of ``answer``'s token there; the
        smallest lead of a best token over the second, in log-probability.
    """
    logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :].float()
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
    top = logprobs.topk(2, dim=-1).values
    lead = float((top[:, 0] - top[:, 1]).min())
    return logits.argmax(-1).tolist(), chosen.tolist(), lead
