"""What the commands of ``tools admin`` share: their options, and the call itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

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

#: The group whose engine is meant, as named before the command.
GROUP: ContextVar[str] = ContextVar("group", default="")
URL, ENV = "http://127.0.0.1:8000", "LORA_ADMIN_KEY"


def run(
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
    """Sends one command, follows its job, prints what came of it, and ends the process.

    It goes to the engine of ``GROUP``.
    """
    # Where nobody sees it as it comes (a file, another program), lines are as long as they are.
    out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 1000)
    errors = Console(stderr=True, soft_wrap=True)
    try:
        client = AdminClient(url, read_key(key_file, key_env), GROUP.get())
        result = client.call(op, **fields)
        if wait and op not in ("job", "job_cancel") and "job" in result:
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
