"""vLLM understands the names of tensors as our validation does."""

from __future__ import annotations

import pytest
from vllm.lora.utils import parse_fine_tuned_lora_name

from tests.badadapters import good


@pytest.mark.parametrize("prefix", ["base_model.model.", ""])
def test_with_and_without_the_prefix(prefix: str) -> None:
    for name in good().tensors:
        plain = name.removeprefix("base_model.model.")
        module = plain.removesuffix(".weight").removesuffix(".lora_A").removesuffix(".lora_B")
        assert parse_fine_tuned_lora_name(prefix + plain) == (module, ".lora_A." in name)
