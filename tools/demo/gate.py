"""The demo's gate: trained once per model and examples, kept in the cache, signed in the folder."""

import hashlib
import inspect
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from python_backend.fusion import embeddings
from python_backend.fusion.embeddings import EmbeddingsError
from python_backend.fusion.gate_file import GATE_FILE, GATE_NAME, GateFileError
from tools.demo.errors import DemoError
from tools.demo.files import new_folder, write_file
from tools.demo.gate_examples import demo_examples
from tools.gate import command, trainer
from tools.gate.problem import GateTrainingError
from tools.gate.trainer import Advance
from tools.layout import CACHE

Status = Callable[[str], None]

GATES = CACHE / "demo-gate"
FOLDER = "gate"
"""The gate's folder in the demo folder."""

KEYS = "signing-keys.yaml"
KEY_ID = "demo"


def has_gate(out: Path) -> bool:
    """Tell whether ``out`` has a gate."""
    return (out / FOLDER / GATE_FILE).is_file()


def add_gate(out: Path, model: Path, status: Status, advance: Advance) -> None:
    """Put a gate into ``out``, signed with the folder's own key, which is made if need be."""
    try:
        trained = cached_gate(model, status, advance)
        keys = out / KEYS
        if not keys.exists():
            write_file(keys, keys_text(), mode=0o600)
        with new_folder(out / FOLDER, scratch=out) as building:
            shutil.copyfile(trained, building / GATE_FILE)
            command.sign_gate(building, keys, KEY_ID)
    except (GateTrainingError, EmbeddingsError, GateFileError) as problem:
        raise DemoError(str(problem)) from problem


def cached_gate(model: Path, status: Status, advance: Advance) -> Path:
    """Return the file of the gate for ``model``, trained if need be."""
    base = embeddings.open_model(model).digest
    examples = demo_examples()
    recipe = hashlib.sha256(f"{base}\0{examples}\0{inspect.getsource(trainer)}".encode())
    folder = GATES / recipe.hexdigest()[:16]
    if not (folder / GATE_FILE).is_file():
        status("training the gate (once)")
        with new_folder(folder) as building:
            command.make_gate(examples, model, building, trainer.Plan(), advance=advance)
    return folder / GATE_FILE


def keys_text() -> str:
    """Return a keys file with one fresh key, for gates alone."""
    return (
        "# Signing keys: who holds one can vouch for what its globs cover.\n"
        "version: 1\n"
        "keys:\n"
        f"  - {{id: {KEY_ID}, secret: '{secrets.token_hex(32)}', adapters: [{GATE_NAME}]}}\n"
    )
