"""``python -m tools demo``: a folder with everything a server needs to be tried out."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tools.demo import folder
from tools.demo.errors import DemoError
from tools.demo.gate import add_gate, has_gate
from tools.demo.model import converted_model

MAX_MARKERS = 9_999
"""The number in a marker's name has four digits."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder to make.")] = Path(".demo"),
    markers: Annotated[
        int, typer.Option(min=0, max=MAX_MARKERS, help="How many marker adapters.")
    ] = 8,
    force: Annotated[bool, typer.Option("--force", help="Make the folder afresh.")] = False,
    new_keys: Annotated[
        bool, typer.Option("--new-keys", help="Replace the API keys of an existing folder.")
    ] = False,
) -> None:
    """Make a demo folder: model, adapters, policy, settings and fresh API keys.

    Run again, it only adds what is missing: more markers, newly trained adapters.
    """
    console = Console(stderr=True)
    started = time.monotonic()
    try:
        done = make_demo(out, markers, force=force, new_keys=new_keys, console=console)
    except (DemoError, OSError) as problem:
        console.print(f"demo: {problem}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from problem
    console.print(f"{out}: {done} ({time.monotonic() - started:.1f} s)", highlight=False)


def make_demo(out: Path, markers: int, *, force: bool, new_keys: bool, console: Console) -> str:
    """Make or complete the folder ``out`` and say in one sentence what was done."""
    if out.exists() and not folder.is_demo(out):
        # Also with --force: this may be any folder, and it would be deleted.
        if not out.is_dir() or any(out.iterdir()):
            raise DemoError(f"{out} is not a demo folder; move it away or choose another --out")
        out.rmdir()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("demo", total=None)

        def status(text: str) -> None:
            progress.update(task, description=text, total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        if force or not out.exists():
            folder.build(out, converted_model(status), markers, status, advance)
            return f"made with {markers} markers and fresh keys"
        added = folder.add_trained(out)
        if folder.missing_markers(out, markers):  # the model is only needed, and looked for, then
            added += folder.add_markers(out, converted_model(status), markers, status, advance)
        gate_added = not has_gate(out)
        if gate_added:
            add_gate(out, converted_model(status), status, advance)
        if new_keys:
            folder.renew_keys(out)
    parts = [f"{len(added)} adapters added" if added else "all adapters present"]
    if gate_added:
        parts.append("gate added")
    parts.append("keys replaced" if new_keys else "keys unchanged")
    return ", ".join(parts)
