"""A caller of ``fin`` tries every door to get at ``svc``, and gets nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server import access_tools
from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import Refused, grpc_request, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]

TARGET = "svc_chat_v1"
ONE = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
#: Spellings that a sloppy comparison would take for the target.
SPELLINGS = (
    TARGET, TARGET.upper(), f" {TARGET}", f"{TARGET}\n", f"{TARGET}\0", f"./{TARGET}",
    f"fin_risk_v1/../{TARGET}", f"{TARGET}@000000000000", "svc_chat_v1",
    "svc＿chat_v1", "svc_chat_v\u0661", "ｓvc_chat_v1", f"fin_risk_v1*0.5+{TARGET}*0.5",
    f"fin_risk_v1|{TARGET}", f"fin_{TARGET}", "svc_*", "*", f"{TARGET}\u200b",
)  # fmt: skip


@pytest.fixture
def fin(server: Server) -> Iterator[Client]:
    client = server.new_client("fin")
    yield client
    client.close()


def attempts(client: Client, server: Server) -> Iterator[tuple[str, Any]]:
    """Every attempt, as what it is and a function that makes it."""
    for door, name in itertools.product(DOORS, SPELLINGS):
        yield f"{door} {name!r}", lambda d=door, n=name: client.answer(d, **ONE, lora_id=n)
    for field in ("lora_id", "lora_name", "x-lora-id", "X-LORA-ID"):
        parameters = {field: TARGET, "max_tokens": 1}
        for way in (client.infer_http, client.infer_grpc):
            yield f"parameter {field}", lambda w=way, p=parameters: w(text_input="Hi", parameters=p)
    for key in ("department", "x-department", "principal", "roles", "tenant", "ticket"):
        parameters = {"lora_id": TARGET, "max_tokens": 1, key: "svc"}
        yield f"claim {key}", lambda p=parameters: client.infer_grpc(text_input="Hi", parameters=p)
    yield (
        "json",
        lambda: client.infer_grpc(
            text_input="Hi", sampling_parameters=json.dumps({"lora_name": TARGET, "max_tokens": 1})
        ),
    )
    yield (
        "both",
        lambda: client.infer_grpc(**ONE, lora_id="fin_risk_v1", headers={"x-lora-id": TARGET}),
    )
    for headers in (
        {"x-department": "svc"},
        {"x-api-key": "svc-app"},
        {"authorization": "Bearer svc-app"},
        {"authorization": "Basic c3ZjOg=="},
        {"authorization": "eyJhbGciOiJub25lIn0.eyJkZXBhcnRtZW50Ijoic3ZjIn0."},
    ):
        yield (
            f"header {headers}",
            lambda h=headers: client.infer_http(**ONE, lora_id=TARGET, headers=h),
        )
    forwarded = {"parameters": {"lora_id": TARGET}, "timeout_us": 0, "can_stream": True}
    yield "the gate", lambda: client.infer_grpc("lora_gate", **ONE, lora_id=TARGET)
    yield (
        "the gate, as a door",
        lambda: client.infer_grpc("lora_gate", **ONE, forwarded=json.dumps(forwarded)),
    )
    yield "the engine", lambda: engine(client, "Hi", "{}", "")
    yield "the engine, with a borrowed ticket", lambda: borrowed(client)


def engine(client: Client, prompt: str, request: str, ticket: str) -> Any:
    inputs = {"prompt": prompt, "request": request, "ticket": ticket}
    (stream,) = client.streams_grpc([grpc_request("vllm_lora", inputs, request_id="1")]).values()
    return stream.checked().replies[-1]


def borrowed(client: Client) -> Any:
    """A good ticket of one's own, with the other's name put in."""
    fields = {**ONE, "lora_id": "fin_risk_v1"}
    outputs = client.infer_grpc("lora_gate", **fields).outputs
    prompt, request, token = (outputs[n][0] for n in ("prompt", "request", "ticket"))
    return engine(client, prompt, request, token.replace("ZmluX3Jpc2tfdjE", "c3ZjX2NoYXRfdjE"[:15]))


CODES = {"not_found", "invalid_argument", "unauthenticated", ""}


def test_every_door(server: Server, fin: Client) -> None:
    got, count = [], 0
    for what, attempt in attempts(fin, server):
        count += 1
        try:
            reply = attempt()
        except Refused as refused:
            assert refused.code in CODES, what
            text = f"{refused}"
            for secret in ("svc-app", str(server.state), "triton_python_backend", "Traceback"):
                assert secret not in text, what
            continue
        served = reply.outputs.get("lora_served", ["?"])[0]
        if not served.startswith("fin_risk_v1@"):
            got.append((what, served))
    assert got == []
    assert count > 150
    lines = access_tools.audit(server)
    mine = [line for line in lines if line.get("principal") == "fin-app"]
    assert not any(str(line.get("served", "")).startswith("svc") for line in mine)
    assert not any(line.get("allowed") and "svc" in line["resolved"] for line in mine)
