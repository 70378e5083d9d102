"""The base model's files."""

from __future__ import annotations

from collections.abc import Iterator

from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, few, ok, size, warning


def model(facts: Facts) -> Iterator[Finding]:
    """config.json and whole weights."""
    found, name = facts.model, "model"
    if not found.name:
        return  # the engine's arguments are refused for it
    if not found.is_folder:
        yield warning(
            name,
            f"{found.name} is no folder here, and the server does not ask the Hub",
            "download it and name the folder in engine.model, or fill the Hub's cache (HF_HOME)",
        )
        return
    if found.config is None:
        yield failure(name, found.config_problem, "copy the whole model")
    if found.unreadable:
        yield failure(
            name, f"{few(found.unreadable)}: not for this user to read", "chmod, or chown"
        )
    elif found.pointers:
        yield failure(
            name,
            f"{few(found.pointers)}: only pointers of git-lfs, not the files",
            "git lfs pull, or download the model anew",
        )
    elif found.missing:
        yield failure(
            name, f"the index names {few(found.missing)}, which are not there", "copy them too"
        )
    elif not found.weights and (found.other_weights or facts.engine.get("load_format")):
        yield warning(
            name,
            f"no *.safetensors in {found.name}: other formats were not tried, and pickles run code",
            "save it as safetensors",
        )
    elif not found.weights:
        yield failure(name, f"no weights in {found.name}", "copy the whole model")
    elif any(not count for count in found.weights.values()):
        empty = [file for file, count in found.weights.items() if not count]
        yield failure(name, f"{few(empty)}: empty", "copy it again")
    elif found.config is not None:
        kind = found.config.get("model_type", "unknown")
        total = sum(found.weights.values())
        yield ok(name, f"{kind}, {len(found.weights)} weight files, {size(total)}")


def tokenizer(facts: Facts) -> Iterator[Finding]:
    """The tokenizer's files and the chat template."""
    if not facts.model.is_folder:
        return
    if not facts.model.tokenizer:
        yield failure(
            "tokenizer",
            "no tokenizer.json, nor any other kind that is known",
            "copy the tokenizer beside the model, or name its folder in engine.tokenizer",
        )
    elif not facts.model.chat_template:
        yield advice(
            "tokenizer",
            "no chat template: requests with `messages` are refused",
            "add chat_template.jinja, if the model is meant to chat",
        )
    else:
        yield ok("tokenizer", "with a chat template")
