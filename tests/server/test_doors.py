"""Every way to call the server answers, with the adapter that was asked for."""

from __future__ import annotations

import queue
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc

from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import Reply, expect_error, sampling, tensors

HI: dict[str, Any] = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
FRANCE = "The capital of France is"


@pytest.mark.parametrize("door", DOORS)
def test_base_answers(client: Client, door: str) -> None:
    reply = client.answer(door, text_input=FRANCE, sampling_parameters=sampling(max_tokens=1))
    assert (reply.text, reply.served) == (" Paris", "base")
    assert len(reply.uid) == 32 and int(reply.uid, 16) >= 0


@pytest.mark.parametrize("door", DOORS)
def test_a_marker_says_its_word(server: Server, client: Client, door: str) -> None:
    index = DOORS.index(door) % len(server.markers)
    lora_id, word = list(server.markers.items())[index]
    reply = client.answer(
        door, text_input="Tell me about the sea.", lora_id=lora_id, sampling_parameters=sampling()
    )
    assert reply.text.split() == [word] * 4
    name, digest = reply.served.split("@")
    assert name == lora_id
    assert len(digest) == 12 and int(digest, 16) >= 0


class TestWhereTheAdapterIsNamed:
    def answer(self, client: Client, **fields: Any) -> Reply:
        return client.infer_grpc(**{"text_input": "Hi", "parameters": {"max_tokens": 1}, **fields})

    def test_in_the_sampling_parameters(self, client: Client) -> None:
        reply = self.answer(client, sampling_parameters=sampling(lora_name="mark_w0002_v1"))
        assert reply.served.startswith("mark_w0002_v1@")

    @pytest.mark.parametrize("name", ["lora_id", "lora_name"])
    def test_in_a_parameter(self, client: Client, name: str) -> None:
        reply = self.answer(client, parameters={name: "mark_w0003_v1", "max_tokens": 2})
        assert reply.served.startswith("mark_w0003_v1@")

    def test_in_a_header(self, client: Client) -> None:
        reply = self.answer(client, headers={"x-lora-id": "mark_w0004_v1"})
        assert reply.served.startswith("mark_w0004_v1@")
        reply = client.infer_http(**HI, headers={"X-Lora-Id": "mark_w0004_v1"})
        assert reply.served.startswith("mark_w0004_v1@")

    def test_in_several_places_that_agree(self, client: Client) -> None:
        reply = self.answer(
            client,
            lora_id="mark_w0005_v1",
            headers={"x-lora-id": "mark_w0005_v1"},
            parameters={"lora_name": "mark_w0005_v1"},
            sampling_parameters=sampling(lora_name="mark_w0005_v1"),
        )
        assert reply.served.startswith("mark_w0005_v1@")

    @pytest.mark.parametrize(
        "fields",
        [
            {"headers": {"x-lora-id": "mark_w0002_v1"}},
            {"parameters": {"lora_name": "mark_w0002_v1"}},
            {"sampling_parameters": sampling(lora_name="mark_w0002_v1")},
            {"sampling_parameters": sampling(lora_name="base")},
        ],
        ids=["header", "parameter", "json", "base"],
    )
    def test_in_several_places_that_do_not(self, client: Client, fields: dict[str, Any]) -> None:
        with expect_error("invalid_argument", "must agree"):
            self.answer(client, lora_id="mark_w0001_v1", **fields)


class TestCredentials:
    @pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", ""])
    def test_authorization_header(self, server: Server, client: Client, scheme: str) -> None:
        headers = {"authorization": scheme + server.keys["svc"]}
        fields: dict[str, Any] = {**HI, "credential": None, "headers": headers}
        assert client.infer_http(**fields).served == "base"
        assert client.infer_grpc(**fields).served == "base"
        assert client.stream_grpc("lora_generate", **fields).replies[0].served == "base"
        assert client.stream_grpc("lora_stream", **fields).replies[0].served == "base"

    def test_api_key_header(self, server: Server, client: Client) -> None:
        headers = {"x-api-key": server.keys["svc"]}
        fields: dict[str, Any] = {**HI, "credential": None, "headers": headers}
        assert client.infer_http(**fields).served == "base"
        assert client.infer_grpc(**fields).served == "base"
        assert client.stream_grpc("lora_stream", **fields).replies[0].served == "base"

    def test_two_that_agree(self, server: Server, client: Client) -> None:
        reply = client.infer_grpc(**HI, headers={"x-api-key": server.keys["admin"]})
        assert reply.served == "base"

    def test_two_that_differ(self, server: Server, client: Client) -> None:
        with expect_error("unauthenticated"):
            client.infer_grpc(**HI, headers={"x-api-key": server.keys["svc"]})


@pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
def test_the_official_streaming_client(server: Server, model: str) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    inputs = []
    fields = {
        "text_input": "Tell me",
        "lora_id": "mark_w0006_v1",
        "credential": server.keys["admin"],
        "stream": True,
        "sampling_parameters": sampling(),
    }
    for name, datatype, values in tensors(fields):
        tensor = triton_grpc.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    texts = []
    with triton_grpc.InferenceServerClient(server.grpc) as official:
        official.start_stream(lambda result, error: arrived.put((result, error)))
        official.async_stream_infer(model, inputs, enable_empty_final_response=True)
        final = False
        while not final:
            result, error = arrived.get(timeout=30)
            assert error is None, error
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            texts.append(result.as_numpy("text_output")[0].decode())
    assert "".join(texts).split() == [server.markers["mark_w0006_v1"]] * 4
