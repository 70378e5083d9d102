"""``python -m tools train-gate``: a gate for mode ``auto``, from examples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ensemble import trained_gate
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.signing_keys import SigningKeysError
from python_backend.fusion import embeddings, gate_file
from python_backend.fusion.embeddings import EmbeddingsError
from python_backend.fusion.gate_file import GATE_NAME, GateFileError
from tools.gate import examples, figures, trainer
from tools.gate.examples import Example, for_calibration, held_out
from tools.gate.figures import Figures
from tools.gate.problem import GateTrainingError
from tools.gate.trainer import Advance, Encode, Plan
from tools.signing.command import sign_secretly


def train_gate(
    data: Annotated[list[Path], typer.Argument(help="JSONL files of prompts and adapters.")],
    model: Annotated[Path, typer.Option(help="Folder of the base model.")],
    out: Annotated[Path, typer.Option(help="Folder of the gate.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the examples.")] = Plan.epochs,
    learning_rate: Annotated[float, typer.Option(min=0.0)] = Plan.learning_rate,
    seed: Annotated[int, typer.Option()] = Plan.seed,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    keys: Annotated[
        Path | None, typer.Option(help="A file of signing keys: sign the gate.")
    ] = None,
    key_id: Annotated[str, typer.Option(help="Which key of it.")] = "",
) -> None:
    """Train the gate of `adapter_fusion`'s mode `auto` on a CPU.

    A fifth of the prompts is held out; how well the gate does on those is printed.
    """
    console = Console(stderr=True)
    plan = Plan(epochs=epochs, learning_rate=learning_rate, seed=seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    started = time.monotonic()
    try:
        found = [example for path in data for example in examples.read(path)]
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            task = progress.add_task("training the gate", total=epochs)

            def advance(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total)

            result = make_gate(found, model, out, plan, threads=threads, advance=advance)
        if keys is not None:
            sign_gate(out, keys, key_id)
    except (
        GateTrainingError,
        EmbeddingsError,
        GateFileError,
        SigningKeysError,
        AdapterRejected,
        OSError,
    ) as problem:
        text = getattr(problem, "text", problem)
        console.print(f"train-gate: {text}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    print(f"{out / gate_file.GATE_FILE}: trained in {time.monotonic() - started:.1f} s")
    print(f"held-out prompts: {result.prompts}")
    print(f"accuracy: {result.accuracy:.3f}")
    print(f"weight error: {result.weight_error:.3f}")
    print(f"calibration error (ECE): {result.calibration_error:.3f}")


def make_gate(
    found: list[Example],
    model: Path,
    out: Path,
    plan: Plan,
    *,
    threads: int = 1,
    advance: Advance = lambda done, total: None,
) -> Figures:
    """Trains, writes and reads back a gate; its figures on the prompts held out.

    Raises:
        GateTrainingError, EmbeddingsError, GateFileError, OSError: what is wrong, and where.
    """
    import torch

    torch.set_num_threads(threads)
    names = examples.adapters(found)
    unseen = [example for example in found if held_out(example.prompt)]
    rest = [example for example in found if not held_out(example.prompt)]
    seen = [example for example in rest if not for_calibration(example.prompt)]
    judges = [example for example in rest if for_calibration(example.prompt)]
    if missing := sorted(set(names) - set(examples.adapters(seen))):
        raise GateTrainingError(f"too few examples for {missing[0]}; give more")
    if not unseen:
        raise GateTrainingError("too few examples to hold any out; give more")
    rows, encode = embeddings.open_model(model), tokenizer(model)
    gate = trainer.train(seen, names, rows, encode, plan, advance)
    gate_file.write(out, trainer.calibrated(gate, judges, rows, encode))
    # Measured is what a server would use.
    written = gate_file.read(out, base=rows.digest, hidden=rows.hidden)
    return figures.measure(written, rows, encode, unseen)


def tokenizer(model: Path) -> Encode:
    """Text to token ids as the server's gate has them.

    Raises:
        GateTrainingError, GateFileError: there is none, or it cannot be used.
    """
    file = model / "tokenizer.json"
    if not file.is_file():
        raise GateTrainingError(f"{file}: no such file; the gate needs the model's fast tokenizer")
    return trained_gate.tokenizer(model)


def sign_gate(folder: Path, keys: Path, key_id: str) -> None:
    """Signs the gate as adapters are signed, under its own name.

    Raises:
        SigningKeysError, AdapterRejected, OSError: no such key, not for gates, or no gate.
    """
    sign_secretly(folder, GATE_NAME, keys, key_id)
