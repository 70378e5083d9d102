"""Operators' commands over gRPC, and what the adapters say meanwhile."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from tests.server.client import LIMIT_S, Client
from tests.server.harness import Server
from tests.server.shapes import Refused, Reply, from_grpc, grpc_request, sampling

PROMPT = "Say something, and say it at length."


def ask(client: Client, op: str, *, key: str | None = None, **fields: Any) -> dict[str, Any]:
    """The result of a command; raises ``Refused``."""
    sent = {"command": json.dumps({"op": op, **fields}), "credential": key or client._key}
    request = grpc_request("lora_admin", sent)
    try:
        response = client.stub.ModelInfer(request, timeout=LIMIT_S)
    except grpc.RpcError as error:
        raise Refused(error.details(), error.code().name) from None
    (result,) = from_grpc(response).outputs["result"]
    found: dict[str, Any] = json.loads(result)
    return found


def ended(client: Client, op: str, limit_s: float = 60.0, **fields: Any) -> dict[str, Any]:
    """The job that ``op`` starts, once it has ended."""
    job = ask(client, op, **fields)["job"]
    end = time.monotonic() + limit_s
    while (found := ask(client, "job", job=job))["state"] == "running":
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {row["lora_id"]: row for row in ask(client, "list")["adapters"]}


def says(client: Client, name: str, **fields: Any) -> tuple[str, str]:
    """The one word that an adapter says, and who said it."""
    sent: dict[str, Any] = {"sampling_parameters": sampling(max_tokens=3), **fields}
    reply: Reply = client.infer_grpc(
        text_input=PROMPT, lora_id=name, exclude_input_in_output=True, **sent
    )
    words = set(reply.text.split())
    assert len(words) == 1, f"a mixture: {reply.text!r}"
    return words.pop(), reply.served


def copy_marker(server: Server, marker: str, name: str) -> Path:
    """A marker under another name in the adapter root, without waiting for the librarian."""
    root = server.demo / "adapters"
    building = root / f".{name}"
    shutil.copytree(root / marker, building)
    return building.rename(root / name)
