"""How requests end: with one final flag each, whatever their ids, and without touching others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Reply, grpc_request, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]


class TestRequestIds:
    @pytest.mark.parametrize("request_id", ["same", ""])
    def test_two_at_once_with_one_id(self, client: Client, request_id: str) -> None:
        given = sampling(max_tokens=12, ignore_eos=True)

        def one(lora_id: str) -> Reply:
            return client.infer_grpc(
                text_input="Hi", lora_id=lora_id, request_id=request_id, sampling_parameters=given
            )

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(one, ["mark_w0001_v1", "mark_w0002_v1"])
        assert first.text.split() == ["Hi", *["alpha"] * 12]
        assert second.text.split() == ["Hi", *["delta"] * 12]
        assert first.uid != second.uid

    @pytest.mark.parametrize("bad", ['x\n{"event":"allow"}', "\x1b[31m", "\u2028", "i" * 100_000])
    def test_odd_ids(self, client: Client, bad: str) -> None:
        reply = client.infer_grpc(text_input="Hi", request_id=bad, parameters={"max_tokens": 1})
        assert len(reply.uid) == 32


class TestFinalFlags:
    """C47, C48: exactly one on every path, and an error ends nothing but its own request."""

    @pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
    @pytest.mark.parametrize(
        "fields, code",
        [
            ({"sampling_parameters": sampling()}, None),
            ({"sampling_parameters": sampling(), "stream": False}, None),
            ({"sampling_parameters": sampling(max_tokens=1)}, None),
            # The first token ends the answer: no text at all.
            ({"sampling_parameters": sampling(stop=" alpha")}, None),
            ({"credential": "wrong"}, "unauthenticated"),
            ({"lora_id": "mark_w0999_v1"}, "not_found"),
            ({"sampling_parameters": "{"}, "invalid_argument"),
            ({"text_input": "a " * 2000}, "invalid_argument"),
            ({"sampling_parameters": sampling(structured_outputs={"regex": "("})}, None),
        ],
        ids=["normal", "whole", "one", "empty", "gate", "denied", "json", "engine", "regex"],
    )
    def test_one(
        self, server: Server, client: Client, model: str, fields: dict[str, Any], code: str | None
    ) -> None:
        sent = {
            "text_input": "Hi",
            "credential": server.keys["admin"],
            "lora_id": "mark_w0001_v1",
            "stream": True,
            **fields,
        }
        streams = client.streams_grpc([grpc_request(model, sent, request_id="7")])
        assert streams.keys() == {"7"}
        assert streams["7"].finals == 1
        if code is not None:
            error = streams["7"].error
            assert error is not None and error.code == code
            assert streams["7"].replies == []

    @pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
    def test_a_deadline_within_a_stream(self, server: Server, client: Client, model: str) -> None:
        sent = {
            "text_input": "Hi",
            "credential": server.keys["admin"],
            "stream": True,
            "sampling_parameters": sampling(max_tokens=900, ignore_eos=True),
        }
        request = grpc_request(model, sent, {"timeout_ms": 400}, request_id="7")
        got = client.streams_grpc([request])["7"]
        assert got.finals == 1 and got.replies
        assert got.error is not None and got.error.code == "deadline_exceeded"

    @pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
    def test_one_bad_request_of_ten(self, server: Server, client: Client, model: str) -> None:
        def request(number: int) -> Any:
            sent = {
                "text_input": "Hi",
                "credential": server.keys["admin"],
                "lora_id": "mark_w0999_v1" if number == 3 else "mark_w0004_v1",
                "stream": True,
                "sampling_parameters": sampling(),
            }
            return grpc_request(model, sent, request_id=str(number))

        got = client.streams_grpc([request(number) for number in range(1, 11)])
        assert {key for key in got} == {str(number) for number in range(1, 11)}
        assert {stream.finals for stream in got.values()} == {1}
        bad = got.pop("3")
        assert bad.error is not None and bad.error.code == "not_found"
        assert [stream.text.split() for stream in got.values()] == [["omega"] * 4] * 9

    def test_with_a_status_the_first_error_ends_the_stream(
        self, server: Server, client: Client
    ) -> None:
        """C48: what a caller asks Triton for with ``triton_grpc_error``."""
        sent = {"text_input": "Hi", "credential": server.keys["admin"], "lora_id": "mark_w0999_v1"}
        with pytest.raises(grpc.RpcError) as refused:
            client.streams_grpc(
                [grpc_request("lora_stream", sent)], headers={"triton_grpc_error": "true"}
            )
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused.value.details().startswith("not_found: ")
