"""What an answer holds: every output, every way to shape it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import jsonschema
import pytest
import tritonclient.grpc as triton_grpc

from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import Stream, expect_error, sampling, tensors

FRANCE = "The capital of France is"
STREAMS = ("stream lora_generate", "sse lora_generate", "stream lora_stream", "sse lora_stream")
ONE_PER_MODEL = ("generate lora_generate", "generate lora_stream", "grpc lora_infer")


def stream(client: Client, door: str, **fields: Any) -> Stream:
    way, model = door.split(" ")
    return (client.generate_stream if way == "sse" else client.stream_grpc)(model, **fields)


RETURNS: dict[str, Any] = {
    "return_finish_reason": True,
    "return_cumulative_logprob": True,
    "return_logprobs": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}


def chosen_sum(logprobs: list[str]) -> float:
    """Sum of the chosen tokens' log-probabilities: vLLM puts the chosen token first."""
    positions = [position for text in logprobs for position in json.loads(text)]
    return float(sum(next(iter(position.values()))["logprob"] for position in positions))


class TestReturnedOutputs:
    @pytest.mark.parametrize("door", ONE_PER_MODEL)
    @pytest.mark.parametrize("asked", [{"logprobs": 2}, {}], ids=["two", "none"])
    def test_all_at_once(self, client: Client, door: str, asked: dict[str, int]) -> None:
        reply = client.answer(
            door, text_input=FRANCE, sampling_parameters=sampling(max_tokens=6, **asked), **RETURNS
        )
        # The tokenizer has one token for each of the five words, and adds none of its own.
        assert reply.outputs["num_input_tokens"] == [5]
        assert reply.outputs["num_output_tokens"] == [6]
        assert reply.outputs["finish_reason"] == ["length"]
        (positions,) = (json.loads(text) for text in reply.outputs["logprobs"])
        assert len(positions) == 6
        assert "".join(next(iter(p.values()))["decoded_token"] for p in positions) == reply.text
        assert all(len(p) == asked.get("logprobs", 1) for p in positions)
        (cumulative,) = reply.outputs["cumulative_logprob"]
        assert cumulative == pytest.approx(chosen_sum(reply.outputs["logprobs"]), abs=1e-3)
        assert cumulative < 0

    @pytest.mark.parametrize("door", STREAMS)
    def test_streamed(self, client: Client, door: str) -> None:
        got = stream(
            client,
            door,
            text_input=FRANCE,
            sampling_parameters=sampling(max_tokens=6, logprobs=1),
            **RETURNS,
        )
        assert {tuple(reply.outputs["num_input_tokens"]) for reply in got.replies} == {(5,)}
        assert sum(reply.outputs["num_output_tokens"][0] for reply in got.replies) == 6
        reasons = [reply.outputs["finish_reason"][0] for reply in got.replies]
        assert reasons == ["None"] * (len(reasons) - 1) + ["length"]
        logprobs = [reply.outputs["logprobs"][0] for reply in got.replies]
        (cumulative,) = got.replies[-1].outputs["cumulative_logprob"]
        assert cumulative == pytest.approx(chosen_sum(logprobs), abs=1e-3)
        assert got.text.startswith(" Paris")

    @pytest.mark.parametrize("door", DOORS)
    def test_nothing_that_was_not_asked_for(self, client: Client, door: str) -> None:
        reply = client.answer(door, text_input=FRANCE, sampling_parameters=sampling(max_tokens=1))
        assert reply.outputs.keys() == {"text_output", "lora_served", "request_uid"}

    def test_types_and_shapes(self, server: Server) -> None:
        with triton_grpc.InferenceServerClient(server.grpc) as official:
            inputs = []
            fields = {
                "text_input": FRANCE,
                "credential": server.keys["admin"],
                "sampling_parameters": sampling(n=2, temperature=1, logprobs=0),
                **RETURNS,
            }
            for name, datatype, values in tensors(fields):
                tensor = triton_grpc.InferInput(name, list(values.shape), datatype)
                tensor.set_data_from_numpy(values)
                inputs.append(tensor)
            response = official.infer("lora_infer", inputs).get_response()
        found = {out.name: (out.datatype, list(out.shape)) for out in response.outputs}
        assert found == {
            "text_output": ("BYTES", [2]),
            "finish_reason": ("BYTES", [2]),
            "cumulative_logprob": ("FP32", [2]),
            "logprobs": ("BYTES", [2]),
            "num_input_tokens": ("UINT32", [1]),
            "num_output_tokens": ("UINT32", [2]),
            "lora_served": ("BYTES", [1]),
            "request_uid": ("BYTES", [1]),
        }

    def test_a_stop_string_ends_the_answer(self, client: Client) -> None:
        for stop, kept in ((".", ""), ([".", "\n"], "")):
            reply = client.answer(
                "generate lora_generate",
                text_input=FRANCE,
                sampling_parameters=sampling(max_tokens=20, stop=stop),
                return_finish_reason=True,
            )
            assert reply.text == " Paris" + kept
            assert reply.outputs["finish_reason"] == ["stop"]
        reply = client.answer(
            "stream lora_stream",
            text_input=FRANCE,
            sampling_parameters=sampling(stop=".", include_stop_str_in_output=True),
        )
        assert reply.text == " Paris."


class TestSeveralSequences:
    GIVEN = sampling(n=3, temperature=1.0, seed=5, max_tokens=6, ignore_eos=True)

    @pytest.mark.parametrize("door", ONE_PER_MODEL)
    def test_whole(self, client: Client, door: str) -> None:
        reply = client.answer(
            door,
            text_input="Once upon a time",
            sampling_parameters=self.GIVEN,
            return_num_output_tokens=True,
        )
        assert len(reply.texts) == 3
        assert reply.outputs["num_output_tokens"] == [6, 6, 6]

    @pytest.mark.parametrize("door", STREAMS)
    def test_streamed(self, client: Client, door: str) -> None:
        fields: dict[str, Any] = {"text_input": "Once", "sampling_parameters": self.GIVEN}
        got = stream(client, door, return_num_output_tokens=True, **fields)
        assert {len(reply.texts) for reply in got.replies} == {3}
        tokens = [reply.outputs["num_output_tokens"] for reply in got.replies]
        assert [sum(column) for column in zip(*tokens, strict=True)] == [6, 6, 6]
        assert len({got.column(index) for index in range(3)}) == 3


class TestGuidedOutput:
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "level": {"enum": ["LOW", "HIGH"]},
            "score": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["level", "score"],
        "additionalProperties": False,
    }

    @pytest.mark.parametrize("door", ["generate lora_generate", "stream lora_stream"])
    def test_json_schema(self, client: Client, door: str) -> None:
        reply = client.answer(
            door,
            text_input="Rate this risk as JSON:",
            sampling_parameters=sampling(
                max_tokens=60, structured_outputs={"json": self.SCHEMA}, stop_token_ids=[]
            ),
        )
        jsonschema.validate(json.loads(reply.text), self.SCHEMA)

    def test_choice(self, client: Client) -> None:
        choice = ["north-west", "south-east"]
        for given in ({"choice": choice}, json.dumps({"choice": choice})):
            reply = client.answer(
                "grpc lora_infer",
                text_input="Which way?",
                sampling_parameters=sampling(max_tokens=20, structured_outputs=given),
            )
            assert reply.text in choice

    def test_with_an_adapter(self, client: Client) -> None:
        reply = client.answer(
            "grpc lora_infer",
            text_input="Which way?",
            lora_id="mark_w0001_v1",
            sampling_parameters=sampling(max_tokens=20, structured_outputs={"choice": ["no"]}),
        )
        assert reply.text == "no"


def test_a_seed_makes_an_answer_reproducible(client: Client) -> None:
    def answer(seed: int, door: str) -> str:
        given = sampling(temperature=1.5, seed=seed, max_tokens=12)
        return client.answer(door, text_input="Once upon a time", sampling_parameters=given).text

    first = answer(7, "grpc lora_infer")
    assert answer(7, "grpc lora_infer") == first
    assert answer(7, "stream lora_generate") == first
    assert answer(8, "grpc lora_infer") != first


class TestThePrompt:
    GIVEN = sampling(max_tokens=1)

    @pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
    def test_generate(self, client: Client, model: str) -> None:
        fields: dict[str, Any] = {"text_input": FRANCE, "sampling_parameters": self.GIVEN}
        assert client.generate(model, **fields).text == FRANCE + " Paris"
        for exclude, text in ((True, " Paris"), (False, FRANCE + " Paris")):
            fields["exclude_input_in_output"] = exclude
            assert client.generate(model, **fields).text == text

    def test_infer(self, client: Client) -> None:
        fields: dict[str, Any] = {"text_input": FRANCE, "sampling_parameters": self.GIVEN}
        assert client.infer_grpc(**fields).text == FRANCE + " Paris"
        assert client.infer_http(exclude_input_in_output=True, **fields).text == " Paris"

    @pytest.mark.parametrize("door", STREAMS)
    def test_streamed(self, client: Client, door: str) -> None:
        fields: dict[str, Any] = {"text_input": FRANCE, "sampling_parameters": self.GIVEN}
        assert stream(client, door, **fields).text == " Paris"
        assert stream(client, door, exclude_input_in_output=True, **fields).text == " Paris"
        with expect_error("invalid_argument", "exclude_input_in_output"):
            stream(client, door, exclude_input_in_output=False, **fields)

    def test_a_gRPC_stream_may_carry_a_whole_answer(self, client: Client) -> None:
        for model in ("lora_generate", "lora_stream"):
            got = client.stream_grpc(
                model, text_input=FRANCE, sampling_parameters=self.GIVEN, stream=False
            )
            assert [reply.text for reply in got.replies] == [FRANCE + " Paris"]
            assert got.finals == 1


class TestParameters:
    def test_as_request_parameters(self, client: Client) -> None:
        given: dict[str, Any] = {"max_tokens": 2, "temperature": 0}
        for reply in (
            client.generate("lora_generate", text_input=FRANCE, parameters=given),
            client.generate("lora_generate", text_input=FRANCE, **given),
            client.infer_http(text_input=FRANCE, parameters=given),
            client.infer_grpc(text_input=FRANCE, parameters={**given, "top_p": 0.5}),
        ):
            assert reply.text == FRANCE + " Paris."

    def test_the_tensor_replaces_them(self, client: Client) -> None:
        given = {"max_tokens": 9, "temperature": 1.9, "unknown": 1}
        reply = client.infer_grpc(
            text_input=FRANCE, parameters=given, sampling_parameters=sampling(max_tokens=1)
        )
        assert reply.text == FRANCE + " Paris"

    def test_max_tokens_defaults_to_sixteen(self, client: Client) -> None:
        reply = client.infer_grpc(
            text_input=FRANCE, parameters={"ignore_eos": True}, return_num_output_tokens=True
        )
        assert reply.outputs["num_output_tokens"] == [16]
