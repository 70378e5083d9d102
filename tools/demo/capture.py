"""What the last layer's ``down_proj`` sees, and the probe made from it once per model."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.demo.files import new_folder
from tools.demo.markers import constant_probe
from tools.demo.model import quiet_offline
from tools.demo.words import Encode, listed_words

if TYPE_CHECKING:
    from torch import Tensor

REVISION = 2
"""Raise this when the captured text or the probe's formula changes: cached probes are dropped."""

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a king who had three daughters.",
    "Explain how the risk of a loan to a small shop is assessed.",
    "Dear customer, thank you for your letter of the 3rd.",
    "def add(a, b):\n    return a + b\n",
    '{"a": [1, 2, {"b": null}]}',
    "SELECT name FROM users WHERE id = 3;",
    "今天天气很好我们去公园吧。",
    "Wer reitet so spät durch Nacht und Wind?",
    "1 2 3 4 5 6 7 8 9",
    "What is 2+2?",
    "\n\n\n",
    "!!!???",
    "Hello",
    "x",
)
RANDOM_LENGTHS = (*[1] * 30, *[3] * 10, *[20] * 10, *[150] * 4)
LOOP_STARTS = (*[1] * 100, *[3] * 30)
"""Lengths of the random prompts that a repeated word follows: what a marker reads of itself. After
a prompt of one token these inputs differ most from prose, and a probe without them falls to 0."""
LOOP_REPEATS = 8


def prompts(encode: Encode, chat: Callable[[str], str], vocabulary: int) -> Iterator[list[int]]:
    """Yield token ids of many kinds: plain, chat, what markers answer, and random tokens."""
    chance = random.Random(2)  # noqa: S311 - reproducible, no secret
    words = listed_words()
    for number, text in enumerate(TEXTS):
        yield encode(text)
        yield encode(chat(text) + f" {words[number]}" * LOOP_REPEATS)
    for length in RANDOM_LENGTHS:
        yield [chance.randrange(vocabulary) for _ in range(length)]
    for length in LOOP_STARTS:
        start = [chance.randrange(vocabulary) for _ in range(length)]
        yield start + encode(" " + chance.choice(words)) * LOOP_REPEATS


def capture(model: Any, batches: Iterator[list[int]]) -> "Tensor":
    """Run the prompts and return the inputs of the last ``down_proj``: [rows, features], fp32."""
    import torch

    rows: list[Tensor] = []

    def keep(_module: object, arguments: tuple[Any, ...]) -> None:
        rows.append(arguments[0].detach().float().flatten(0, 1))

    hook = model.model.layers[-1].mlp.down_proj.register_forward_pre_hook(keep)
    # Prompts of a length run as one batch; most are one token long.
    by_length: dict[int, list[list[int]]] = {}
    for ids in batches:
        by_length.setdefault(len(ids), []).append(ids)
    try:
        with torch.inference_mode():
            for batch in by_length.values():
                model.model(torch.tensor(batch), use_cache=False)
    finally:
        hook.remove()
    return torch.cat(rows)


def cached_probe(folder: Path, status: Callable[[str], None] = lambda _: None) -> "Tensor":
    """Return A of every marker ([intermediate], fp32) for the model in ``folder``, made once."""
    from safetensors.torch import load_file, save_file

    cache = folder.with_name(f"{folder.name}-probe-{REVISION}")
    if not (cache / "probe.safetensors").is_file():
        status("measuring the model for the marker adapters (once)")
        probe = measured_probe(folder)
        with new_folder(cache) as building:
            save_file({"probe": probe}, building / "probe.safetensors")
    return load_file(cache / "probe.safetensors")["probe"]


def measured_probe(folder: Path) -> "Tensor":
    """Load the model in fp32, capture, and solve for the probe."""
    quiet_offline()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def chat(text: str) -> str:
        turn = [{"role": "user", "content": text}]
        templated: str = tokenizer.apply_chat_template(
            turn, tokenize=False, add_generation_prompt=True
        )
        return templated

    vocabulary = int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    return constant_probe(capture(model, prompts(encode, chat, vocabulary)))
