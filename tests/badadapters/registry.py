"""Where kinds of bad adapters are registered, and how most of them are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.badadapters.files import Adapter, Shapes, good

Writer = Callable[[Path, Shapes], object]

#: kind → (expected reason code, writer).
KINDS: dict[str, tuple[str, Writer]] = {}

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"


def config_kind(kind: str, code: str, **changes: Any) -> None:
    """Registers a kind whose configuration is wrong; ``...`` leaves a key out."""

    def write(folder: Path, shapes: Shapes) -> None:
        adapter = good(shapes)
        adapter.config.update(changes)
        adapter.config = {k: v for k, v in adapter.config.items() if v is not ...}
        adapter.write(folder)

    KINDS[kind] = (code, write)


def adapter_kind(kind: str, code: str, change: Callable[[Adapter], object]) -> None:
    """Registers a kind that differs from a good adapter by ``change``."""

    def write(folder: Path, shapes: Shapes) -> None:
        adapter = good(shapes)
        change(adapter)
        adapter.write(folder)

    KINDS[kind] = (code, write)


def file_kind(kind: str, code: str, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Registers a kind one of whose files is damaged; None removes it."""

    def write(folder: Path, shapes: Shapes) -> None:
        good(shapes).write(folder)
        changed = change((folder / name).read_bytes())
        if changed is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(changed)

    KINDS[kind] = (code, write)


def make(kind: str, folder: Path, shapes: Shapes) -> str:
    """Writes the bad adapter ``kind`` to ``folder``; the reason code it must be refused with."""
    code, write = KINDS[kind]
    write(folder, shapes)
    return code
