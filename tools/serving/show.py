"""What the person at the terminal sees of a server."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tools.serving import examples, log
from tools.serving.arguments import Ports


class Show:
    """Remarks and errors go to stderr, results to stdout."""

    def __init__(self, host: str, ports: Ports, log_path: Path, *, verbose: bool) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.host = host
        self.ports = ports
        self.log_path = log_path
        self._verbose = verbose

    def lines(self, lines: list[str], *, starting: bool = False) -> None:
        """Lines of the server's log: all when verbose, else the errors.

        Those of a start come once and in order, with the reason it failed.
        """
        for line in lines:
            if self._verbose or (log.is_error(line) and not starting):
                self.say(line)

    def say(self, text: str) -> None:
        """A line on stderr, exactly as it is."""
        self.console.print(text, markup=False)

    def ready(self, keys: Path) -> None:
        """The line that others wait for, then the calls to copy."""
        host, ports = self.host, self.ports
        where = {"http": ports.http, "grpc": ports.grpc, "metrics": ports.metrics}
        print("ready", *(f"{name}={host}:{port}" for name, port in where.items()))
        print("\n".join(examples.calls(f"{host}:{ports.http}", keys)), flush=True)

    def restarting(self, why: str, delay_s: float) -> None:
        """The server has died and will be started again."""
        first, *more = why.splitlines()
        print(f"restarting: {first}", flush=True)
        for line in more:
            self.say(line)
        self.say(f"the next start in {delay_s:.0f} s")
