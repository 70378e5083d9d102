"""What the tests of access and audit share: the audit read back, the policy rewritten."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from python_backend.audit.chain import KEY_FILE
from tests.server.harness import Server
from tools.audit import report
from tools.audit.findings import Verdict
from tools.audit.verify import verify

#: Longer than a gate takes to see a new policy, seconds.
SEEN_S = 1.0


def folder(server: Server) -> Path:
    return server.state / "audit"


def audit(server: Server) -> list[dict[str, Any]]:
    """Every line so far."""
    return list(report.records(folder(server)))


def verdict(server: Server) -> Verdict:
    """What ``tools audit verify`` says now."""
    return verify(folder(server), (folder(server) / KEY_FILE).read_bytes())


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


@contextlib.contextmanager
def policy(server: Server, edit: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """The server's policy, edited and in force; the old one is back afterwards."""
    path = server.demo / "policy.yaml"
    before = path.read_text("utf-8")
    body = yaml.safe_load(before)
    edit(body)
    replace(path, yaml.safe_dump(body))
    try:
        time.sleep(SEEN_S)
        yield
    finally:
        replace(path, before)
        time.sleep(SEEN_S)


def replace(path: Path, text: str) -> None:
    """As an operator should: no reader sees half of it."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def lines_of(server: Server, **wanted: Any) -> list[dict[str, Any]]:
    """The audit's lines with all of these values."""
    return [line for line in audit(server) if wanted.items() <= {**line}.items()]
