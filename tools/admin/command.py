"""``tools admin``: one command for each operation of ``lora_admin``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tools.admin import show
from tools.admin.calling import (
    ENV,
    GROUP,
    URL,
    AsJson,
    KeyEnv,
    KeyFile,
    LoraId,
    Sha256,
    Url,
    Wait,
    run,
)

app = typer.Typer(
    help="Adapters of a running server. Exit code 0: done; 1: the server refused, or the job "
    "failed; 2: wrong usage, no key, or no server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
alias_app = typer.Typer(help="Aliases: roll out, with a canary if you like; roll back.")
app.add_typer(alias_app, name="alias", no_args_is_help=True)


@app.callback()
def _admin(
    group: Annotated[
        str, typer.Option(help="Whose engine, on a server with one for each of several groups.")
    ] = "",
) -> None:
    GROUP.set(group)


@app.command("list")
def list_(
    url: Url = URL, key_file: KeyFile = None, key_env: KeyEnv = ENV, as_json: AsJson = False
) -> None:
    """Every adapter: state, version, size, where it lies, when it was used, what is wrong."""

    def shown(console: Console, result: dict[str, Any]) -> None:
        console.print(show.adapters(result["adapters"]))
        if result.get("root_problem"):
            console.print(Text(result["root_problem"], style="red"))

    run(url, key_file, key_env, as_json, "list", shown=shown)


@app.command()
def status(
    url: Url = URL, key_file: KeyFile = None, key_env: KeyEnv = ENV, as_json: AsJson = False
) -> None:
    """The server: version, uptime, adapters by state, slots, what is wrong with the policy."""
    run(url, key_file, key_env, as_json, "status", shown=show.pairs)


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
    run(
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
    run(
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
        run(url, key_file, key_env, as_json, op, wait=wait, lora_id=lora_id)

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

    run(url, key_file, key_env, as_json, "cancel", shown=shown, request_uid=request_uid)


@app.command()
def job(
    job_id: Annotated[str, typer.Argument(help="As add, update, remove or warm printed it.")],
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """How far a job has come."""
    run(url, key_file, key_env, as_json, "job", shown=show.pairs, job=job_id)


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
        run(url, key_file, key_env, as_json, "breaker_reset", shown=show.changed, breaker=reset)
        return

    def shown(console: Console, result: dict[str, Any]) -> None:
        console.print(show.breakers(result["breakers"]))

    run(url, key_file, key_env, as_json, "breakers", shown=shown)


@app.command("cancel-job")
def cancel_job(
    job_id: Annotated[str, typer.Argument(help="As add, update or warm printed it.")],
    url: Url = URL,
    key_file: KeyFile = None,
    key_env: KeyEnv = ENV,
    as_json: AsJson = False,
) -> None:
    """Stop a job that has not begun to change anything; what it fetched is deleted."""

    def shown(console: Console, result: dict[str, Any]) -> None:
        console.print("cancelled" if result["cancelled"] else "too late: see job")

    run(url, key_file, key_env, as_json, "job_cancel", shown=shown, job=job_id)


@alias_app.command("list")
def alias_list(
    url: Url = URL, key_file: KeyFile = None, key_env: KeyEnv = ENV, as_json: AsJson = False
) -> None:
    """Where each alias leads."""

    def shown(console: Console, result: dict[str, Any]) -> None:
        for row in result["aliases"]:
            canary = f", {row['share']:.0%} to {row['canary']}" if row["canary"] else ""
            console.print(Text(f"{row['alias']} → {row['to']}{canary} ({row['set_by']})"))

    run(url, key_file, key_env, as_json, "aliases", shown=shown)


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
    run(
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
    run(url, key_file, key_env, as_json, "alias_rollback", alias=alias)
