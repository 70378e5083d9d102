"""What changes the server, or reads others' memory, needs the operator's key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.server.client import Client
from tests.server.harness import Server

pytestmark = pytest.mark.server

HTTP: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v2/repository/index", {}),
    ("POST", "/v2/repository/models/lora_gate/load", {}),
    ("POST", "/v2/repository/models/lora_gate/unload", {}),
    ("GET", "/v2/systemsharedmemory/status", None),
    ("POST", "/v2/systemsharedmemory/region/x/register", {"key": "/x", "byte_size": 1}),
    ("POST", "/v2/systemsharedmemory/unregister", {}),
    ("GET", "/v2/cudasharedmemory/status", None),
    ("GET", "/v2/trace/setting", None),
    ("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
    ("GET", "/v2/logging", None),
    ("POST", "/v2/logging", {"log_verbose_level": 1}),
]


@pytest.mark.parametrize("method, path, body", HTTP, ids=[f"{m} {p}" for m, p, _ in HTTP])
@pytest.mark.parametrize("key", [None, "wrong"])
def test_http(client: Client, method: str, path: str, body: Any, key: str | None) -> None:
    headers = {} if key is None else {"admin-key": key}
    response = client.http.request(method, path, json=body, headers=headers)
    assert response.status_code == 403
    assert "restricted" in response.json()["error"]


GRPC: list[tuple[str, Any]] = [
    ("RepositoryIndex", pb.RepositoryIndexRequest()),
    ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="lora_gate")),
    ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="lora_gate")),
    ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
    ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="x", key="/x")),
    ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
    ("TraceSetting", pb.TraceSettingRequest()),
    ("LogSettings", pb.LogSettingsRequest()),
]


@pytest.mark.parametrize("name, message", GRPC, ids=[name for name, _ in GRPC])
@pytest.mark.parametrize("key", [None, "wrong"])
def test_grpc(client: Client, name: str, message: Any, key: str | None) -> None:
    metadata = [] if key is None else [("triton-grpc-protocol-admin-key", key)]
    call: Callable[..., Any] = getattr(client.stub, name)
    with pytest.raises(grpc.RpcError) as caught:
        call(message, metadata=metadata, timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "restricted" in caught.value.details()


def test_the_operators_key_opens_them(server: Server, client: Client) -> None:
    response = client.post("/v2/repository/index", headers={"admin-key": server.admin_key})
    assert {model["name"] for model in response.json()} >= {"lora_gate", "vllm_lora"}
    metadata = [("triton-grpc-protocol-admin-key", server.admin_key)]
    index = client.stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=metadata)
    assert {model.name for model in index.models} >= {"lora_generate", "lora_infer"}


def test_the_key_is_the_operators_alone(server: Server) -> None:
    for name in ("triton-admin.key", "ticket.key"):
        assert (server.state / "run" / name).stat().st_mode & 0o777 == 0o600
    assert (server.state / "run").stat().st_mode & 0o077 == 0
