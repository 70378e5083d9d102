"""``tools admin``: one command for each operation of ``lora_admin``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tools.admin import show
from tools.admin.client import AdminClient, NotReached, Refused, read_key

Url = Annotated[str, typer.Option(help="Triton's HTTP address.")]
KeyFile = Annotated[
    Path | None, typer.Option(help="A file with the key, or a demo's keys.json (its admin).")
]
KeyEnv = Annotated[str, typer.Option(help="The variable that holds the key, without a file.")]
AsJson = Annotated[bool, typer.Option("--json", help="The server's answer as JSON.")]
Wait = Annotated[bool, typer.Option(help="Wait for the job, or print its id and leave.")]
LoraId = Annotated[str, typer.Argument(help="department_business_version, such as fin_risk_v2.")]

Sha256 = Annotated[
    str | None, typer.Option(help="What must arrive: the version digest, or the weight file's.")
]

URL, ENV = "http://127.0.0.1:8000", "LORA_ADMIN_KEY"

app = typer.Typer(
    help="Adapters of a running server. Exit code 0: done; 1: the server refused, or the job "
    "failed; 2: wrong usage, no key, or no server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
alias_app = typer.Typer(help="Aliases: roll out, with a canary if you like; roll back.")
app.add_typer(alias_app, name="alias", no_args_is_help=True)


def _run(
    url: str,
    key_file: Path | None,
    key_env: str,
    as_json: bool,
    op: str,
    *,
    shown: Callable[[Console, dict[str, Any]], None] | None = None,
    wait: bool = True,
    **fields: Any,
) -> None:
    """Sends one command, follows its job, prints what came of it, and ends the process."""
    # Where nobody sees it as it comes (a file, another program), lines are as long as they are.
    out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
    errors = Console(stderr=True, soft_wrap=True)
    try:
        client = AdminClient(url, read_key(key_file, key_env))
        result = client.call(op, **fields)
        if wait and op != "job" and "job" in result:
            with errors.status(f"{op} …") as status:
                result = client.follow(
                    result["job"], lambda step: status.update(Text(f"{op}: {step} …"))
                )
    except Refused as refused:
        errors.print(Text(f"error: {refused}"))
        raise typer.Exit(1) from None
    except NotReached as problem:
        errors.print(Text(f"error: {problem}"))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("left; the server goes on with it")
        raise typer.Exit(1) from None
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    elif shown is not None:
        shown(out, result)
    else:
        text = result.get("result") or result.get("status")
        out.print(Text(str(text or f"job {result.get('job')}")))


@app.command("list")
def list_(
    url: Url = URL, key_file: KeyFile = None, key_env: KeyEnv = ENV, as_json: AsJson = False
) -> None:
    """Every adapter: state, version, size, where it lies, when it was used, what is wrong."""

    def shown(console: Console, result: dict[str, Any]) -> None:
        console.print(show.adapters(result["adapters"]))

    _run(url, key_file, key_env, as_json, "list", shown=shown)


@app.command()
def status(
    url: Url = URL, key_file: KeyFile = None, key_env: KeyEnv = ENV, as_json: AsJson = False
) -> None:
    """The server: version, uptime, adapters by state, slots, what is wrong with the policy."""
    _run(url, key_file, key_env, as_json, "status", shown=show.pairs)


@app.command()
def add(
    lora_id: LoraId,
    source: Annotated[
        str | None,
        typer.Argument(help="A folder on the server, or a URI that sources.allow names."),
    ] = None,
    sha256: Sha256 = None,
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
    wait: Wait = True,
) -> None:
    """Copy an adapter into the root and serve it; without SOURCE, serve what lies there now."""
    _run(
        url,
        key_file,
        key_env,
        as_json,
        "add",
        wait=wait,
        lora_id=lora_id,
        source=source,
        sha256=sha256,
    )


@app.command()
def update(
    lora_id: LoraId,
    source: Annotated[str, typer.Argument(help="A folder or a URI, as for add.")],
    sha256: Sha256 = None,
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
    wait: Wait = True,
) -> None:
    """Replace an adapter; what runs ends on the old version, a refused one changes nothing."""
    _run(
        url,
        key_file,
        key_env,
        as_json,
        "update",
        wait=wait,
        lora_id=lora_id,
        source=source,
        sha256=sha256,
    )


def _simple(op: str, text: str) -> None:
    """A command whose only argument is an adapter."""

    def command(
        lora_id: LoraId,
        url: Url = URL,
        key_file: KeyFile = None,
        key_env: KeyEnv = ENV,
        as_json: AsJson = False,
        wait: Wait = True,
    ) -> None:
        _run(url, key_file, key_env, as_json, op, wait=wait, lora_id=lora_id)

    app.command(op, help=text)(command)


for _op, _text in (
    ("remove", "Take an adapter off, let its requests end, free the engine, delete its folder."),
    ("disable", "Refuse requests for an adapter until it is enabled, also after a restart."),
    ("enable", "Undo disable."),
    ("pin", "Never evict an adapter; at least one slot stays without."),
    ("unpin", "Undo pin."),
    ("warm", "Load an adapter into the engine before anybody asks for it."),
):
    _simple(_op, _text)


@app.command()
def cancel(
    request_uid: Annotated[str, typer.Argument(help="The output request_uid.")],
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """Cancel a request; callers may cancel those of their own department."""

    def shown(console: Console, result: dict[str, Any]) -> None:
        console.print("cancelled" if result["cancelled"] else "no such request is under way")

    _run(url, key_file, key_env, as_json, "cancel", shown=shown, request_uid=request_uid)


@app.command()
def job(
    job_id: Annotated[str, typer.Argument(help="As add, update, remove or warm printed it.")],
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """How far a job has come."""
    _run(url, key_file, key_env, as_json, "job", shown=show.pairs, job=job_id)


@app.command()
def breakers(
    reset: Annotated[
        str | None, typer.Option(help="Close SIGNAL, or SIGNAL/SCOPE, as the list names them.")
    ] = None,
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """Every breaker: its state and how often it opened; or reset some, whatever they are."""
    if reset is not None:
        _run(url, key_file, key_env, as_json, "breaker_reset", shown=show.changed, breaker=reset)
        return

    def shown(console: Console, result: dict[str, Any]) -> None:
        console.print(show.breakers(result["breakers"]))

    _run(url, key_file, key_env, as_json, "breakers", shown=shown)


@alias_app.command("list")
def alias_list(
    url: Url = URL, key_file: KeyFile = None, key_env: KeyEnv = ENV, as_json: AsJson = False
) -> None:
    """Where each alias leads."""

    def shown(console: Console, result: dict[str, Any]) -> None:
        for row in result["aliases"]:
            canary = f", {row['share']:.0%} to {row['canary']}" if row["canary"] else ""
            console.print(Text(f"{row['alias']} → {row['to']}{canary} ({row['set_by']})"))

    _run(url, key_file, key_env, as_json, "aliases", shown=shown)


@alias_app.command("set")
def alias_set(
    alias: Annotated[str, typer.Argument(help="A free name, such as fin_risk.")],
    to: Annotated[str, typer.Argument(help="The lora_id it stands for.")],
    canary: Annotated[str | None, typer.Option(help="A lora_id for a share of requests.")] = None,
    share: Annotated[
        float | None, typer.Option(help="The canary's share, 0 to 1.", min=0, max=1)
    ] = None,
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """Point an alias at another adapter, at once and for good; `alias rollback` takes it back."""
    _run(
        url,
        key_file,
        key_env,
        as_json,
        "alias_set",
        alias=alias,
        to=to,
        canary=canary,
        share=share,
    )


@alias_app.command("rollback")
def alias_rollback(
    alias: Annotated[str, typer.Argument(help="An alias that was set.")],
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """Point an alias to where it led before it was last set."""
    _run(url, key_file, key_env, as_json, "alias_rollback", alias=alias)
