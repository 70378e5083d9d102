"""``tools audit verify|tail|report``."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from python_backend.audit import retention
from python_backend.audit.chain import KEY_FILE
from tools.audit import report as reports
from tools.audit.verify import verify

app = typer.Typer(
    help="The audit of a server: DIR is <state dir>/audit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

_OF_REFUSALS = ("department", "what", "refused")

_Dir = Annotated[Path, typer.Argument(metavar="DIR", help="<state dir>/audit of the server.")]
_Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


def _folder(folder: Path) -> Path:
    if not folder.is_dir():
        _fail(f"{folder}: no such folder; name the folder audit in the server's state dir")
    return folder


def _fail(text: str) -> None:
    print(f"audit: {text}", file=sys.stderr)
    raise typer.Exit(3)


@app.command("verify")
def verify_command(
    folder: _Dir,
    key: Annotated[Path | None, typer.Option(help="The audit key; DIR/audit.key.")] = None,
    as_json: _Json = False,
) -> None:
    """Whether nothing was edited, cut off, removed or reordered, and every decision has its end.

    Exit code 0: whole. 1: tampered with. 2: whole, but with gaps. 3: cannot be looked at.
    """
    path = key or _folder(folder) / KEY_FILE
    try:
        secret = path.read_bytes()
    except OSError as error:
        _fail(f"{path}: {error.strerror}")
    verdict = verify(_folder(folder), secret)
    counts = {k: v for k, v in dataclasses.asdict(verdict).items() if k != "findings"}
    if as_json:
        findings = [
            {"kind": f.kind.name.lower(), "file": f.file, "line": f.line, "text": f.text}
            for f in verdict.findings
        ]
        print(json.dumps({**counts, "findings": findings, "exit_code": verdict.exit_code}))
    else:
        for finding in verdict.findings:
            print(finding)
        word = {0: "whole", 1: "TAMPERED", 2: "whole, with gaps"}[verdict.exit_code]
        print(f"{word}: " + ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in counts.items()))
    raise typer.Exit(verdict.exit_code)


@app.command()
def tail(
    folder: _Dir,
    lines: Annotated[int, typer.Option("-n", min=0, help="How many lines to begin with.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
) -> None:
    """The newest lines of all files, by time, as JSON. Does not verify them."""
    records = sorted(reports.records(_folder(folder)), key=lambda r: float(r.get("at", 0)))
    for record in records[-lines:] if lines else []:
        print(json.dumps(record))
    seen = {path: path.stat().st_size for path in retention.files(folder)}
    while follow:
        sys.stdout.flush()
        time.sleep(0.5)
        for path in retention.files(folder):
            with path.open("rb") as file:
                file.seek(seen.get(path, 0))
                for line in file:
                    if line.endswith(b"\n"):
                        seen[path] = seen.get(path, 0) + len(line)
                        print(line.decode("ascii", "replace"), end="")


@app.command()
def report(
    folder: _Dir,
    as_json: _Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV: one row per counter.")] = False,
    hours: Annotated[float | None, typer.Option(min=0, help="Only the last so many hours.")] = None,
) -> None:
    """Calls per department and adapter, refusals, and what they were refused for."""
    since = 0.0 if hours is None else time.time() - hours * 3600
    summary = reports.summarise(reports.records(_folder(folder)), since_s=since)
    if as_json:
        print(json.dumps(summary))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["table", *reports.COLUMNS])
        for name, rows in summary.items():
            writer.writerows([name, *(row[c] for c in reports.COLUMNS)] for row in rows)
    else:
        for name, rows in summary.items():
            Console().print(_table(name, rows))


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    columns = [c for c in reports.COLUMNS if name != "refusals" or c in _OF_REFUSALS]
    shown = Table(title=name, title_justify="left", box=SIMPLE, pad_edge=False, padding=0)
    for column in columns:
        words = column in ("department", "what")
        shown.add_column(
            column.replace("_", "\n"),
            justify="left" if words else "right",
            overflow="fold",
            min_width=24 if column == "what" else None,
        )
    for row in rows:
        # Names come from callers: no markup of theirs is looked at.
        shown.add_row(*(escape(str(row[c])) for c in columns))
    return shown
