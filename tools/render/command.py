"""``python -m tools render``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from python_backend import files
from tools.render import nginx as gateway
from tools.render import reading
from tools.render import repository as models
from tools.render.reading import RenderError

app = typer.Typer(
    help="Files for nginx and for Triton, made from fleet.yaml.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
_FleetFile = Annotated[Path, typer.Option("--fleet", metavar="FILE", help="Groups and servers.")]
_FLEET = Path("fleet.yaml")
#: Whoever runs nginx reads it; it holds no secret.
_MODE = 0o644


def _stop(text: str) -> typer.Exit:
    print("\n".join(f"error: {line}" for line in text.splitlines()), file=sys.stderr)
    return typer.Exit(2)


@app.command()
def nginx(
    fleet: _FleetFile = _FLEET,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; without it to the terminal.")
    ] = None,
) -> None:
    """The gateway: an nginx.conf, whole and the same each time. docs/gateway.md explains it."""
    try:
        found, lines = reading.load(fleet)
        if problems := gateway.problems(found):
            raise reading.refusal(fleet, lines, problems)
    except RenderError as error:
        raise _stop(str(error)) from None
    text = gateway.render(found)
    if out is None:
        print(text, end="")
        return
    try:
        files.replace(out, text, _MODE)
    except OSError as error:
        raise _stop(f"{out}: cannot be written: {error.strerror}; choose another --out") from None
    print(f"wrote {out}", file=sys.stderr)


@app.command()
def repository(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to; what was rendered there is replaced.")
    ],
    fleet: _FleetFile = _FLEET,
) -> None:
    """A model repository with an engine, a gate and doors for each group that has an engine."""
    try:
        found, lines = reading.load(fleet)
        serving = fleet.parent / found.serving
        if problems := models.problems(found, serving):
            raise reading.refusal(fleet, lines, problems)
        models.write(out, models.files(found, serving))
    except RenderError as error:
        raise _stop(str(error)) from None
    names = ", ".join(models.engines(found))
    print(f"wrote {out}: {names}", file=sys.stderr)
