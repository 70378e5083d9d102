"""What the real nginx makes of a rendered configuration; behind it stands only an echo."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import pytest

from tests import debian
from tests.gateway import front
from tests.gateway.front import Front
from tools.render.nginx import STRIPPED

CALL = "/v2/models/lora_infer/infer"


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        port = self.server.server_address[1]
        seen = {"path": self.path, "headers": self.headers.items(), "body": body, "port": port}
        answer = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def echoes() -> Iterator[list[int]]:
    """Ports of three servers."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Echo) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def member(http: int, grpc: int = 1) -> dict[str, Any]:
    return {"host": "127.0.0.1", "http": http, "grpc": grpc}


@pytest.fixture(scope="module")
def gateway(echoes: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    groups = {
        "finance": {
            "adapters": ["fin_*"],
            "aliases": ["risk.ctrl"],
            "servers": [member(echoes[0])],
        },
        "service": {
            "adapters": ["svc_*"],
            "servers": [member(echoes[1], 1), member(echoes[2], 2)],
            "engine": {},
        },
        "gone": {"adapters": ["qa_*"], "servers": [member(1)]},
    }
    rates = {"departments": {"fin": {"per_minute": 1, "burst": 3}}}
    with front.running(
        tmp_path_factory.mktemp("echo") / "front", groups, rates=rates, max_body_bytes=1000
    ) as running:
        yield running


def post(gateway: Front, lora_id: str, path: str = CALL, **options: Any) -> httpx.Response:
    headers = {"x-lora-id": lora_id, **options.pop("headers", {})}
    return httpx.post(f"http://{gateway.http}{path}", headers=headers, **options)


def test_nginx_agrees_with_every_kind_of_fleet(tmp_path: Path) -> None:
    nginx = debian.program("nginx", "nginx")
    one = {"a": {"adapters": ["fin_*"], "servers": [member(1)]}}
    many = {
        name: {"adapters": [f"{name}_*", "x[!ab]?_*_v[0-9]"], "servers": [member(1), member(2, 2)]}
        for name in ("finance",)
    }
    cases: list[dict[str, Any]] = [
        {"groups": one},
        {"groups": one, "tls": True},
        {"groups": many, "default_group": "finance", "address": "[::]"},
        {"groups": many, "balance": "round_robin", "models": ["lora_infer"]},
    ]
    for at, case in enumerate(cases):
        folder = tmp_path / str(at)
        folder.mkdir()
        conf = front.rendered(front.write(folder, case.pop("groups"), **case))
        done = subprocess.run(
            [nginx, "-t", "-p", folder, "-c", conf], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        # nginx 1.25.1 and later would have http2 said in another way, which 1.22 does not know.
        assert not [
            line for line in done.stderr.splitlines() if "[warn]" in line and "http2" not in line
        ]


def test_only_three_of_a_callers_headers_get_through(gateway: Front) -> None:
    sent = {name: "mallory" for name in STRIPPED}
    sent |= {"admin-key": "k", "x-anything": "1", "User-Agent": "me"}
    passed = {"authorization": "Bearer a", "x-api-key": "b", "x-lora-id": "svc_chat_v1"}
    passed |= {"content-type": "application/json", "inference-header-content-length": "2"}
    seen = post(gateway, "svc_chat_v1", headers={**sent, **passed}, content="{}").json()
    found = {name.lower(): value for name, value in seen["headers"]}
    assert found.pop("host") == "localhost"
    assert found.pop("content-length") == "2"
    assert found.pop("accept") == "*/*"
    assert found == passed
    assert seen["body"] == "{}"


def test_a_name_leads_to_its_group(gateway: Front, echoes: list[int]) -> None:
    for lora_id in ("risk.ctrl", "risk.ctrl*0.5+svc_chat_v1*0.5"):
        assert post(gateway, lora_id).json()["port"] == echoes[0]
    for lora_id in ("svc_chat_v1", "svc_chat_v1*0.6+fin_risk_v1*0.4"):
        assert post(gateway, lora_id).json()["port"] in echoes[1:]
    for lora_id in ("riskxctrl", "FIN_risk_v1", "fin", "xfin_risk_v1", "base", "fin_a b"):
        assert post(gateway, lora_id).status_code == 400
        assert post(gateway, lora_id).json()["error"].startswith("not_found: ")
    answer = httpx.post(f"http://{gateway.http}{CALL}")
    assert answer.json()["error"].startswith("invalid_argument: header x-lora-id")


def test_an_engine_of_ones_own_is_asked_by_its_name(gateway: Front) -> None:
    path = "/v2/models/lora_stream/versions/1/generate_stream"
    seen = post(gateway, "svc_chat_v1", path).json()
    assert seen["path"] == path.replace("lora_stream", "lora_stream_service")


def test_an_adapter_has_one_home_and_all_servers_have_some(
    gateway: Front, echoes: list[int]
) -> None:
    def homes() -> list[int]:
        return [post(gateway, f"svc_a{at}_v1").json()["port"] for at in range(20)]

    found = homes()
    assert set(found) == set(echoes[1:])
    assert homes() == found


def test_a_departments_rate_is_each_keys_own(gateway: Front) -> None:
    def statuses(count: int, headers: dict[str, str]) -> list[int]:
        return [post(gateway, "fin_a_v1", headers=headers).status_code for _ in range(count)]

    assert statuses(5, {"x-api-key": "one"}) == [200] * 4 + [429]
    # However the same key is written; another key is not kept from anything.
    assert statuses(1, {"authorization": "bearer  one"}) == [429]
    assert statuses(1, {"authorization": "Bearer two"}) == [200]
    answer = post(gateway, "fin_a_v1", headers={"x-api-key": "one"})
    assert answer.json()["error"].startswith("overloaded: ")
    assert answer.headers["retry-after"] == "1"


def test_errors_of_the_gateway_speak_as_the_servers_do(gateway: Front) -> None:
    answer = post(gateway, "qa_a_v1")
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("unavailable: ")
    answer = post(gateway, "svc_a_v1", content="x" * 1001)
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("invalid_argument: ")
    method = "/inference.GRPCInferenceService/ModelInfer"
    with grpc.insecure_channel(f"127.0.0.1:{gateway.ports[1]}") as channel:
        for lora_id, code in (
            ("qa_a_v1", grpc.StatusCode.UNAVAILABLE),
            ("none_v1", grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"", metadata=[("x-lora-id", lora_id)], timeout=10)
            assert caught.value.code() is code


def test_no_key_is_in_the_log(gateway: Front) -> None:
    post(gateway, "svc_chat_v1", headers={"x-api-key": "s3cret", "authorization": "Bearer s3cret"})
    post(gateway, "qa_a_v1", headers={"x-api-key": "s3cret"})
    assert gateway.log()[-1]["group"] == "gone"
    for name in ("access.log", "error.log"):
        assert "s3cret" not in (gateway.folder / name).read_text()
