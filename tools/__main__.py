"""``python -m tools <command>``.

A command is one line in ``COMMANDS``; its module is imported only when it is called, so that
``--help`` stays fast however heavy the commands are.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import typer

#: Name → (module, function or typer.Typer in it, line of help).
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("tools.serve", "serve", "Start Triton with the models and wait until it is ready."),
    "health": ("tools.health", "health", "Whether a server lives; wait until it is idle."),
    "doctor": ("tools.doctor.command", "doctor", "What stands in the way of serving, and cures."),
    "demo": ("tools.demo.command", "demo", "Make .demo: a small model, adapters, policy and keys."),
    "train-demo": ("tools.demo.train", "train_demo", "Train the demo's adapters on the CPU."),
    "train-gate": ("tools.gate.command", "train_gate", "Train the gate of mode auto on the CPU."),
    "admin": ("tools.admin.command", "app", "Adapters of a running server: list, add, pin, …"),
    "sign": ("tools.signing.command", "sign", "Sign an adapter's files."),
    "verify": ("tools.signing.command", "verify", "Check the signature of an adapter."),
    "signing-keys": ("tools.signing.keys", "app", "Make and rotate signing keys."),
    "policy": ("tools.policy.command", "app", "Check the policy file; explain what it decides."),
    "keys": ("tools.keys", "app", "Make API keys."),
    "audit": ("tools.audit.command", "app", "Verify, follow and sum up the audit."),
    "simulate": ("tools.simulate.command", "command", "Run the admission over a simulated engine."),
    "top": ("tools.top.command", "top", "Watch a running server, from its metrics alone."),
    "plan": ("tools.plan.command", "plan", "Engine arguments that fit a memory."),
    "render": ("tools.render.command", "app", "Files for nginx, made from fleet.yaml."),
    "report": ("tools.report.command", "report", "Two load tests beside each other, on a page."),
    "bench": ("tools.bench.command", "app", "Measure parts of the product in process."),
}

app = typer.Typer(
    name="python -m tools",
    help="Commands for those who run, test and build the product.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def _group() -> None:
    # With a callback typer keeps the command's name even while there is only one command.
    pass


def _forward(name: str, module: str, attribute: str) -> Callable[[typer.Context], None]:
    """A command that imports its module and hands it the arguments, ``--help`` among them."""

    def run(context: typer.Context) -> None:
        try:
            target = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:  # The image has less than a checkout.
            lacking = f"{name} needs {error.name}, which is not installed here"
            typer.echo(f"{lacking}: run it in a checkout, after `make setup`", err=True)
            raise typer.Exit(2) from None
        inner = target
        if not isinstance(target, typer.Typer):
            inner = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
            inner.command()(target)
        inner(args=context.args, prog_name=f"python -m tools {name}")

    return run


for _name, (_module, _attribute, _help) in COMMANDS.items():
    app.command(
        _name,
        help=_help,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_forward(_name, _module, _attribute))


if __name__ == "__main__":
    app(prog_name="python -m tools")
