"""``python -m tools train-demo``: train the demo adapters and check what they learnt."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tools.demo import trainer
from tools.demo.errors import DemoError
from tools.demo.examples import ADAPTERS, has_format, held_out
from tools.demo.files import new_folder
from tools.demo.folder import TRAINED
from tools.demo.model import converted_model


def train_demo(
    adapter: Annotated[
        str, typer.Option(help=f"Which adapter: {', '.join(ADAPTERS)} or all.")
    ] = "all",
    out: Annotated[Path, typer.Option(help="Folder of the adapters' folders.")] = TRAINED,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
) -> None:
    """Train the demo adapters on the committed examples; a minute or two each on a CPU.

    Fails when an adapter misses its format on a prompt it was not trained on.
    """
    console = Console(stderr=True)
    chosen = ADAPTERS if adapter == "all" else (adapter,)
    try:
        unknown = sorted(set(chosen) - set(ADAPTERS))
        if unknown:
            raise DemoError(f"--adapter {unknown[0]}: choose {', '.join(ADAPTERS)} or all")
        missed = sum(train_one(lora_id, out, threads, console) for lora_id in chosen)
        if missed:
            raise DemoError(
                f"{missed} held-out answers miss their format; improve the examples in "
                f"tools/demo/data or raise the adapter's STEPS in tools/demo/trainer.py, then "
                f"train again"
            )
    except (DemoError, OSError) as problem:
        console.print(f"train-demo: {problem}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from problem


def train_one(lora_id: str, out: Path, threads: int, console: Console) -> int:
    """Train and check one adapter; return how many held-out answers miss the format."""
    import torch

    torch.set_num_threads(threads)
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(lora_id, total=trainer.STEPS[lora_id])
        base = converted_model(lambda text: progress.update(task, description=text))

        def advance(step: int, loss: float) -> None:
            progress.update(task, completed=step, description=f"{lora_id} loss {loss:.3f}")

        with new_folder(out / lora_id) as building:
            loss = trainer.train(lora_id, base, building, advance)
        progress.update(task, description=f"{lora_id} check", total=None)
        prompts = held_out(lora_id)
        replies = trainer.answers(base, out / lora_id, prompts)
    good = [has_format(lora_id, reply) for reply in replies]
    console.print(
        f"{lora_id}: last loss {loss:.3f}, {sum(good)} of {len(good)} held-out answers in format "
        f"({time.monotonic() - started:.0f} s)",
        highlight=False,
    )
    for prompt, reply, right in zip(prompts, replies, good, strict=True):
        mark = "ok  " if right else "MISS"
        console.print(f"  {mark} {prompt} -> {reply!r}", markup=False, highlight=False)
    return len(good) - sum(good)
