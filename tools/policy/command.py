"""``tools policy check|explain``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import yaml

from ensemble.access import Policy, PolicyError, load_policy
from python_backend.adapters import naming
from tools.policy import check as checks
from tools.policy import explain as explanations
from tools.policy.lines import Lines

app = typer.Typer(
    help="Check the policy file; explain what it decides.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

_File = Path(".demo/policy.yaml")


def _read(path: Path) -> tuple[Policy, Lines]:
    try:
        policy = load_policy(path)
        return policy, Lines(path.read_text("utf-8"))
    except (PolicyError, OSError, yaml.YAMLError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy.")] = _File,
    adapters: Annotated[
        Path | None, typer.Option(help="Adapter root, to find globs that match nothing.")
    ] = None,
) -> None:
    """Whether the file can be used, and what in it is odd.

    Looks for what cannot be used (unknown keys and departments, keys used twice, wrong values),
    and for shadowed globs, globs that match no adapter, expired keys, and whoever can do nothing.
    Exit code 0: usable, 1: not usable or surely not meant so.
    """
    policy, lines = _read(file)
    known = None
    if adapters is not None:
        if not adapters.is_dir():
            print(f"error: --adapters {adapters}: no such folder", file=sys.stderr)
            raise typer.Exit(1)
        known = [path.name for path in adapters.iterdir() if naming.is_lora_id(path.name)]
    found = checks.remarks(policy, lines, now_s=time.time(), known=known)
    for remark in found:
        print(f"{file}:{remark.line}: {'error' if remark.error else 'warning'}: {remark.text}")
    print(
        f"{file}: {len(policy.departments)} departments, {len(policy.principals)} principals, "
        f"{len(found)} remarks"
    )
    raise typer.Exit(int(any(remark.error for remark in found)))


@app.command()
def explain(
    principal: Annotated[str, typer.Option(help="Who would call.")],
    lora_id: Annotated[str, typer.Option(help="What for: a lora_id, or base.")] = naming.BASE,
    policy: Annotated[Path, typer.Option(help="The policy.")] = _File,
) -> None:
    """Whether a principal may use an adapter, and the line that says so.

    Exit code 0: allowed, 2: not allowed, 1: the file cannot be used.
    """
    loaded, lines = _read(policy)
    found = explanations.explain(loaded, lines, principal, lora_id)
    print(f"{policy}:{found.line}: {'allowed' if found.allowed else 'not allowed'}: {found.why}")
    raise typer.Exit(0 if found.allowed else 2)
