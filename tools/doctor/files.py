"""Gathers what lies in the model's folder and in the adapter root. Nothing here judges.

``os.path`` and not ``Path`` asks what is there: what may not be looked at is not there.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from python_backend import memory_plan
from python_backend.adapters import keeper, naming, peft_config, source_folder, weights
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import BUNDLE_FILE, SIGNATURE_FILE
from python_backend.engine import fitting
from python_backend.engine.arguments import ALLOWED_MAX_RANKS
from python_backend.settings import Settings, SettingsError
from tools.doctor.facts import AdapterFolder, AdapterRoot, ModelFiles
from tools.doctor.machine import remote

#: Most bytes of adapters that are hashed for their signatures: some seconds.
VERIFIED_BYTES = 2 << 30
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "spiece.model")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf")
#: A git-lfs pointer is a text of about 130 bytes.
_POINTER, _POINTER_BYTES = b"version https://git-lfs", 1024


def model(engine: Mapping[str, Any]) -> ModelFiles:
    """The base model's folder, as the engine's arguments name it."""
    name = str(engine.get("model") or "")
    folder = Path(name)
    if not name or not os.path.isdir(folder):
        return ModelFiles(name=name)
    config, config_problem = _config(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    sizes = {path.name: os.path.getsize(path) for path in files if os.path.isfile(path)}
    tokens = Path(str(engine.get("tokenizer") or name))
    shape, shape_problem = None, ""
    try:
        shape, _ = fitting.read(folder, str(engine.get("dtype") or "auto"))
    except (memory_plan.PlanError, TypeError, ValueError, ArithmeticError) as error:
        shape_problem = str(error)
    return ModelFiles(
        name=name,
        is_folder=True,
        config=config,
        config_problem=config_problem,
        weights=sizes,
        missing=tuple(sorted(_indexed(folder / _INDEX) - sizes.keys())),
        unreadable=tuple(sorted(_unreadable(files, tokens))),
        pointers=tuple(path.name for path in files if _is_pointer(path)),
        other_weights=tuple(p.name for kind in _OTHER_WEIGHTS for p in sorted(folder.glob(kind))),
        # A tokenizer that is no folder is a name of the Hub.
        tokenizer=not os.path.isdir(tokens)
        or any(os.path.isfile(tokens / file) for file in _TOKENIZERS)
        or any(tokens.glob("*.tiktoken")),
        chat_template=_has_template(tokens),
        shape=shape,
        shape_problem=shape_problem,
    )


def _config(path: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        body = json.loads(path.read_text("utf-8"))
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    except ValueError as error:
        return None, f"{path}: not JSON: {error}"
    return (body, "") if isinstance(body, dict) else (None, f"{path}: not a JSON object")


def _indexed(path: Path) -> set[str]:
    try:
        return {str(name) for name in json.loads(path.read_text("utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _unreadable(weight_files: list[Path], tokens: Path) -> set[str]:
    files = [*weight_files, *(tokens / name for name in _TOKENIZERS)]
    return {path.name for path in files if os.path.isfile(path) and not os.access(path, os.R_OK)}


def _is_pointer(path: Path) -> bool:
    try:
        if path.stat().st_size > _POINTER_BYTES:
            return False
        return path.read_bytes().startswith(_POINTER)
    except OSError:
        return False


def _has_template(folder: Path) -> bool:
    if any(os.path.isfile(folder / f"chat_template.{kind}") for kind in ("jinja", "json")):
        return True
    found, _ = _config(folder / "tokenizer_config.json")
    return bool(found and found.get("chat_template"))


def adapters(settings: Settings, listed: tuple[str, ...] = ()) -> AdapterRoot:
    """The adapter root, each adapter judged as far as that goes without the engine."""
    root = settings.adapters.root
    try:
        signatures, keys_problem = keeper.signature_policy(settings), ""
    except SettingsError as error:
        signatures, keys_problem = SignaturePolicy(), str(error)
    try:
        mode = root.stat().st_mode
        entries = sorted(root.iterdir())
    except OSError as error:
        problem = f"adapters.root {root}: {error.strerror}"
        return AdapterRoot(problem=problem, listed=listed, keys_problem=keys_problem)
    reader = _Reader(signatures, settings.adapters.max_file_bytes)
    folders, strangers = [], []
    for entry in entries:
        if naming.is_lora_id(entry.name):
            folders.append(reader.read(entry))
        elif not entry.name.startswith(".") and (os.path.isdir(entry) or os.path.islink(entry)):
            strangers.append(entry.name)
    return AdapterRoot(
        writable_by_all=bool(mode & stat.S_IWOTH),
        remote=remote(root),
        folders=tuple(folders),
        strangers=tuple(strangers),
        listed=listed,
        keys_problem=keys_problem,
        unverified=reader.unverified,
    )


class _Reader:
    """Reads one adapter after the other, and hashes no more than ``VERIFIED_BYTES``."""

    def __init__(self, signatures: SignaturePolicy, max_file_bytes: int) -> None:
        self._signatures, self._max = signatures, max_file_bytes
        self._left = VERIFIED_BYTES
        self.unverified = 0

    def read(self, folder: Path) -> AdapterFolder:
        """What the server would find in it, but for what takes the engine or the weights."""
        name, rank, size, signed = folder.name, None, 0, None
        try:
            with source_folder.opened(folder, self._max) as files:
                config = peft_config.parse(files.config, ALLOWED_MAX_RANKS[-1])
                rank = max([config.r, *config.rank_pattern.values()])
                size = self._header(files)
                try:
                    signed = self._check(name, files, size)
                except AdapterRejected as error:
                    return AdapterFolder(name, rank, size, signature_problem=error.text)
        except AdapterRejected as error:
            return AdapterFolder(name, rank, size, problem=error.text)
        except OSError as error:
            return AdapterFolder(name, rank, size, problem=str(error.strerror))
        return AdapterFolder(name, rank, size, signed=signed)

    @staticmethod
    def _header(files: source_folder.SourceFiles) -> int:
        """The weights' size, bytes; their header is read, where they are one file."""
        if files.joined is not None:
            return files.joined.size_bytes
        size = os.fstat(files.weights_fd).st_size
        with os.fdopen(os.dup(files.weights_fd), "rb") as file:
            weights.read_header(file, size)
        return size

    def _check(self, name: str, files: source_folder.SourceFiles, size: int) -> bool | None:
        if self._signatures.keys is None:
            return None
        there = {SIGNATURE_FILE, BUNDLE_FILE} & set(os.listdir(files.folder_fd))
        if not there:
            # Nothing to hash for: it is refused for having none, or need not have one.
            return self._signatures.check(name, files.folder_fd, {}) or None
        if size > self._left:
            self.unverified += 1
            return None
        self._left -= size
        return self._signatures.check(name, files.folder_fd, files.manifest(*files.digest()))
