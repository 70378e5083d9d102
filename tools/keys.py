"""``tools keys``: API keys."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import typer

app = typer.Typer(
    help="Make API keys.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

#: 256 bits: nobody finds such a key by trying, so its plain sha256 is safe to store.
_KEY_BYTES = 32


@app.callback()
def _group() -> None:
    # With a callback typer keeps the command's name even while there is only one command.
    pass


def new_key(prefix: str) -> tuple[str, str]:
    """A fresh API key and its sha256 (hex)."""
    key = f"{prefix}{secrets.token_urlsafe(_KEY_BYTES)}"
    return key, hashlib.sha256(key.encode()).hexdigest()


@app.command("new")
def new(
    prefix: Annotated[str, typer.Option(help="What the key begins with.")] = "lora-",
) -> None:
    """Make one key: the key for its user, the sha256 for the policy. The key is shown this once."""
    if not prefix.isascii() or not prefix.isprintable() or " " in prefix or "." in prefix:
        raise typer.BadParameter("printable ASCII without spaces and dots", param_hint="--prefix")
    key, digest = new_key(prefix)
    print(f"key:    {key}")
    print(f"sha256: {digest}")
