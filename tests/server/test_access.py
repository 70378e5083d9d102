"""Who may use what, over HTTP and gRPC, with keys and with tokens."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.server import access_tools
from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import Refused, expect_error, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]

ONE = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def fin(server: Server) -> Iterator[Client]:
    client = server.new_client("fin")
    yield client
    client.close()


@pytest.mark.parametrize("door", DOORS)
class TestEveryDoor:
    def test_what_is_allowed(self, fin: Client, door: str) -> None:
        served = fin.answer(door, **ONE, lora_id="fin_risk_v1").served
        assert served.startswith("fin_risk_v1@")

    @pytest.mark.parametrize("name", ["svc_chat_v1", "fin_none_v1", "svc_none_v1", "mark_w0001_v1"])
    def test_unknown_and_forbidden_are_one(self, fin: Client, door: str, name: str) -> None:
        with expect_error("not_found") as caught:
            fin.answer(door, **ONE, lora_id=name)
        assert caught.value.sentence == "no adapter of that name is available to you."

    @pytest.mark.parametrize("credential", [None, "", "nobody", "FIN", "x" * 9000])
    def test_without_a_good_key(self, fin: Client, door: str, credential: str | None) -> None:
        with expect_error("unauthenticated") as caught:
            fin.answer(door, **ONE, lora_id="fin_risk_v1", credential=credential)
        assert caught.value.sentence == "a valid API key is needed."


@pytest.mark.parametrize("way", ["infer_http", "infer_grpc"])
class TestHeaders:
    def send(self, client: Client, way: str, headers: dict[str, str], **fields: Any) -> str:
        call: Callable[..., Any] = getattr(client, way)
        sent = {**ONE, "credential": None, "headers": headers, **fields}
        return str(call(**sent).served)

    def test_a_department_header_proves_nothing(
        self, server: Server, client: Client, way: str
    ) -> None:
        headers = {"x-api-key": server.keys["fin"], "x-department": "svc"}
        with expect_error("not_found"):
            self.send(client, way, headers, lora_id="svc_chat_v1")
        assert self.send(client, way, headers, lora_id="fin_risk_v1").startswith("fin_risk_v1@")

    def test_two_that_differ(self, server: Server, client: Client, way: str) -> None:
        headers = {"x-api-key": server.keys["fin"], "authorization": f"Bearer {server.keys['svc']}"}
        with expect_error("unauthenticated"):
            self.send(client, way, headers, lora_id="fin_risk_v1")
        with expect_error("unauthenticated"):
            self.send(client, way, {"x-api-key": server.keys["fin"]}, credential=server.keys["svc"])

    def test_a_header_cannot_change_the_adapter(
        self, server: Server, client: Client, way: str
    ) -> None:
        headers = {"x-api-key": server.keys["fin"], "x-lora-id": "svc_chat_v1"}
        with expect_error("invalid_argument"):
            self.send(client, way, headers, lora_id="fin_risk_v1")
        with expect_error("not_found"):
            self.send(client, way, headers)


def test_a_key_is_rotated_without_a_gap(server: Server, client: Client) -> None:
    def new_key(body: dict[str, Any]) -> None:
        keys = body["principals"][0]["api_key_sha256"]
        keys.append({"sha256": hashlib.sha256(b"next-key").hexdigest(), "expires": "2999-01-01"})
        keys.append({"sha256": hashlib.sha256(b"past-key").hexdigest(), "expires": "2020-01-01"})

    ask = {**ONE, "lora_id": "fin_risk_v1"}
    with access_tools.policy(server, new_key):
        for key in (server.keys["fin"], "next-key"):
            assert client.infer_grpc(**ask, credential=key).served.startswith("fin_risk_v1@")
        with expect_error("unauthenticated"):
            client.infer_grpc(**ask, credential="past-key")
    with expect_error("unauthenticated"):
        client.infer_grpc(**ask, credential="next-key")


def test_a_broken_policy_changes_nothing_and_is_told(server: Server, fin: Client) -> None:
    path = server.demo / "policy.yaml"
    before, mark = path.read_text(), server.log_mark()
    access_tools.replace(path, "version: [")
    try:
        time.sleep(access_tools.SEEN_S)
        assert fin.infer_grpc(**ONE, lora_id="fin_risk_v1").served.startswith("fin_risk_v1@")
        server.wait_for_log("the policy stays as it was", mark)
        assert access_tools.lines_of(server, event="policy_error")
    finally:
        access_tools.replace(path, before)
        time.sleep(access_tools.SEEN_S)


class TestTokens:
    @pytest.fixture(autouse=True)
    def with_tokens(self, server: Server) -> Iterator[None]:
        (server.demo / "jwt.pem").write_bytes(PUBLIC)

        def section(body: dict[str, Any]) -> None:
            body["jwt"] = {
                "algorithms": ["RS256"], "issuer": "idp", "audience": "lora",
                "key_file": "jwt.pem", "department_claim": "department",
            }  # fmt: skip

        with access_tools.policy(server, section):
            yield

    def token(self, key: Any = KEY, **changes: Any) -> str:
        claims = {"iss": "idp", "aud": "lora", "sub": "alice", "department": "fin"}
        claims = {**claims, "exp": time.time() + 60, **changes}
        return jwt.encode({k: v for k, v in claims.items() if v is not None}, key, "RS256")

    def test_all(self, server: Server, client: Client) -> None:
        good = self.token()
        for way in (client.infer_http, client.infer_grpc):
            headers = {"authorization": f"Bearer {good}"}
            reply = way(**ONE, lora_id="fin_risk_v1", credential=None, headers=headers)
            assert reply.served.startswith("fin_risk_v1@")
            with expect_error("not_found"):
                way(**ONE, lora_id="svc_chat_v1", credential=None, headers=headers)
        assert client.generate("lora_generate", **ONE, lora_id="fin_risk_v1", credential=good)
        assert client.infer_grpc(**ONE, credential=server.keys["svc"]).served == "base"
        (line, *_) = access_tools.lines_of(server, event="decision", principal="alice")
        assert (line["via"], line["department"]) == ("jwt", "fin")
        head, body, mac = good.split(".")
        for bad in (
            self.token(OTHER),
            self.token(exp=time.time() - 60),
            self.token(exp=None),
            self.token(nbf=time.time() + 60),
            self.token(iss="other"),
            self.token(aud="other"),
            self.token(department="gone"),
            self.token(sub="fin-app"),
            f"{head}.{body}.{mac[:-3]}",
            jwt.encode({"sub": "alice", "department": "fin"}, "", "none"),
        ):
            with expect_error("unauthenticated"):
                client.infer_grpc(**ONE, lora_id="fin_risk_v1", credential=bad)


#: Requests that the audit is counted over, a quarter of them refused.
REQUESTS = 1000


class TestTheAudit:
    def test_every_request_has_its_lines(self, server: Server, fin: Client) -> None:
        before = access_tools.verdict(server)
        allowed = REQUESTS * 3 // 4

        def one(number: int) -> str:
            name = "svc_chat_v1" if number % 4 == 0 else "fin_risk_v1"
            door = ("grpc lora_infer", "stream lora_stream", "stream lora_generate")[number % 3]
            try:
                return fin.answer(door, **ONE, lora_id=name).uid
            except Refused as refused:
                assert refused.code == "not_found"
                return ""

        with ThreadPoolExecutor(16) as pool:
            uids = list(pool.map(one, range(REQUESTS)))
        wait = access_tools.wait_until
        wait(lambda: access_tools.verdict(server).completions >= before.completions + allowed)
        after = access_tools.verdict(server)
        assert [f for f in after.findings if f.kind.name == "TAMPERED"] == []
        assert after.decisions - before.decisions == REQUESTS
        assert after.allowed - before.allowed == allowed
        assert after.completions - before.completions == allowed
        done = {line["uid"]: line for line in access_tools.lines_of(server, event="completion")}
        for uid in filter(None, uids):
            assert done[uid]["outcome"] == "ok" and done[uid]["output_tokens"] == 1
            assert done[uid]["served"].startswith("fin_risk_v1@")

    def test_names_cannot_forge_lines(self, server: Server, fin: Client) -> None:
        count = len(access_tools.lines_of(server, event="decision"))
        names = ['x\n{"event":"allow"}', "\x1b[2Jx", "a\u2028b", "é", "a" * 1_000_000]
        for name in names:
            with expect_error("invalid_argument"):
                fin.infer_grpc(**ONE, lora_id=name)
        assert len(access_tools.lines_of(server, event="decision")) == count + len(names)
        text = "".join(p.read_text() for p in access_tools.folder(server).glob("*.jsonl"))
        assert text.isascii() and '"event":"allow"' not in text

    def test_no_secrets_and_no_prompts(self, server: Server, fin: Client) -> None:
        secret = "the swordfish sleeps at noon"
        fin.infer_grpc(**{**ONE, "text_input": secret}, lora_id="fin_risk_v1")
        text = "".join(p.read_text() for p in access_tools.folder(server).glob("*.jsonl"))
        assert hashlib.sha256(secret.encode()).hexdigest() in text
        for word in ("swordfish", *server.keys.values()):
            assert word not in text
