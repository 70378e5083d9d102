"""What clients of Triton's official vLLM backend rely on, asked of a running server."""

from __future__ import annotations

import queue
import threading
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from python_backend.messages import RETURN_SWITCHES
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import expect_error, grpc_request, sampling

PROMPT = "The capital of France is"
ANSWER = " Paris.\n\n"
#: Enough work to be cancelled in the middle of.
LONG = {"max_tokens": 900, "ignore_eos": True}
SWITCHES = tuple(RETURN_SWITCHES)
ALL = dict.fromkeys(SWITCHES, True)
ALWAYS = {"text_output", "lora_served", "request_uid"}
CANCELLING = "[vllm] Cancelling the request"
CANCELLED = "[vllm] Successfully cancelled the request"


# Tensors ------------------------------------------------------------------------------------------


def shapes(client: Client, model: str, **fields: Any) -> dict[str, tuple[str, list[int]]]:
    """Datatype and shape of every output of a whole answer."""
    fields = {"credential": client._key, "text_input": PROMPT, **fields}
    if model == "lora_infer":
        response = client.stub.ModelInfer(grpc_request(model, fields), timeout=30)
    else:
        (message,) = client.stub.ModelStreamInfer(iter([grpc_request(model, fields)]), timeout=30)
        assert not message.error_message
        response = message.infer_response
    return {out.name: (out.datatype, list(out.shape)) for out in response.outputs}


@pytest.mark.parametrize("model", ["lora_infer", "lora_stream", "lora_generate"])
@pytest.mark.parametrize("n", [1, 2])
def test_dtype_and_shape_of_every_output(client: Client, model: str, n: int) -> None:
    parameters = sampling(n=n, temperature=1, logprobs=1, max_tokens=2)
    assert shapes(client, model, sampling_parameters=parameters, **ALL) == {
        "text_output": ("BYTES", [n]),
        "finish_reason": ("BYTES", [n]),
        "cumulative_logprob": ("FP32", [n]),
        "logprobs": ("BYTES", [n]),
        "num_input_tokens": ("UINT32", [1]),
        "num_output_tokens": ("UINT32", [n]),
        "lora_served": ("BYTES", [1]),
        "request_uid": ("BYTES", [1]),
    }


def test_an_ensemble_sends_what_nobody_asked_for_as_empty(client: Client) -> None:
    # Triton fails an ensemble's request for which one of its outputs was never set.
    found = shapes(client, "lora_generate", sampling_parameters=sampling(max_tokens=1))
    asked = {name: shape for name, (_, shape) in found.items() if name in ALWAYS}
    others = {name: shape for name, (_, shape) in found.items() if name not in ALWAYS}
    assert asked == {name: [1] for name in ALWAYS}
    assert others == {name: [0] for name in RETURN_SWITCHES.values()}


@pytest.mark.parametrize("model", ["lora_generate", "lora_stream", "lora_infer"])
def test_the_models_declare_the_official_tensors(client: Client, model: str) -> None:
    metadata = client.http.get(f"/v2/models/{model}").json()
    inputs = {t["name"]: (t["datatype"], t["shape"]) for t in metadata["inputs"]}
    outputs = {t["name"]: (t["datatype"], t["shape"]) for t in metadata["outputs"]}
    flags = dict.fromkeys(("stream", "exclude_input_in_output", *SWITCHES), ("BOOL", [1]))
    texts = dict.fromkeys(("text_input", "sampling_parameters"), ("BYTES", [1]))
    assert inputs.items() >= {**flags, **texts}.items()
    assert (
        outputs.items()
        >= {
            "text_output": ("BYTES", [-1]),
            "finish_reason": ("BYTES", [-1]),
            "cumulative_logprob": ("FP32", [-1]),
            "logprobs": ("BYTES", [-1]),
            "num_input_tokens": ("UINT32", [1]),
            "num_output_tokens": ("UINT32", [-1]),
        }.items()
    )


# Prompt, parameters, streaming --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exclude", "text"), [(None, PROMPT + ANSWER), (False, PROMPT + ANSWER), (True, ANSWER)]
)
@pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
def test_the_prompt_is_prepended_unless_excluded(
    client: Client, model: str, exclude: bool | None, text: str
) -> None:
    fields = {} if exclude is None else {"exclude_input_in_output": exclude}
    reply = client.generate(model, text_input=PROMPT, sampling_parameters=sampling(), **fields)
    assert reply.text == text


@pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
@pytest.mark.parametrize("fields", [{}, {"exclude_input_in_output": True}])
def test_a_stream_sends_deltas_without_the_prompt(
    client: Client, model: str, fields: dict[str, bool]
) -> None:
    stream = client.stream_grpc(
        model,
        text_input=PROMPT,
        sampling_parameters=sampling(),
        return_num_output_tokens=True,
        return_finish_reason=True,
        **fields,
    )
    # A response a step; vLLM makes one of two where it is called late.
    counts = [reply.outputs["num_output_tokens"][0] for reply in stream.replies]
    assert sum(counts) == 4 and len(counts) > 1
    tokens = iter([" Paris", ".", "\n", "\n"])
    assert [reply.text for reply in stream.replies] == [
        "".join(next(tokens) for _ in range(count)) for count in counts
    ]
    reasons = [reply.outputs["finish_reason"] for reply in stream.replies]
    assert reasons == [["None"]] * (len(counts) - 1) + [["length"]]
    assert stream.finals == 1


@pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
def test_a_stream_cannot_begin_with_the_prompt(client: Client, model: str) -> None:
    with expect_error("invalid_argument", "exclude_input_in_output"):
        client.stream_grpc(
            model,
            text_input=PROMPT,
            sampling_parameters=sampling(),
            exclude_input_in_output=False,
        )


@pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
def test_without_stream_one_response_is_the_last(client: Client, model: str) -> None:
    found = client.stream_grpc(
        model, text_input=PROMPT, sampling_parameters=sampling(), stream=False
    )
    assert [reply.text for reply in found.replies] == [PROMPT + ANSWER]
    assert found.finals == 1


def test_request_parameters_are_sampling_parameters_and_strings_are_cast(client: Client) -> None:
    reply = client.infer_grpc(
        text_input=PROMPT,
        parameters={"temperature": "0", "top_p": "1", "max_tokens": "3"},
        return_num_output_tokens=True,
        exclude_input_in_output=True,
    )
    assert (reply.text, reply.outputs["num_output_tokens"]) == (" Paris.\n", [3])


def test_the_tensor_replaces_the_request_parameters(client: Client) -> None:
    reply = client.infer_grpc(
        text_input=PROMPT,
        parameters={"max_tokens": 3, "stop": " Paris"},
        sampling_parameters='{"temperature": "0", "max_tokens": "2"}',
        exclude_input_in_output=True,
    )
    assert reply.text == " Paris."


def test_a_stop_string_ends_the_answer(client: Client) -> None:
    reply = client.infer_grpc(
        text_input=PROMPT,
        sampling_parameters=sampling(stop="\n"),
        exclude_input_in_output=True,
        return_finish_reason=True,
    )
    assert (reply.text, reply.outputs["finish_reason"]) == (" Paris.", ["stop"])


def test_the_official_name_of_an_adapter(server: Server, client: Client) -> None:
    lora_id, word = next(iter(server.markers.items()))
    reply = client.infer_grpc(
        text_input=PROMPT,
        sampling_parameters=sampling(lora_name=lora_id, max_tokens=1),
        exclude_input_in_output=True,
    )
    assert reply.text == f" {word}"


# Cancellation -------------------------------------------------------------------------------------


def test_cancel_of_a_stream_by_the_official_client(server: Server) -> None:
    mark = server.log_mark()
    answers: queue.Queue[Any] = queue.Queue()
    request = {"text_input": PROMPT, "stream": True, "credential": server.keys["admin"]}
    inputs = []
    for name, value in {**request, "sampling_parameters": sampling(**LONG)}.items():
        tensor = grpc_request("lora_stream", {name: value})
        inputs.append(_official_input(tensor))
    with triton_grpc.InferenceServerClient(server.grpc) as official:
        official.start_stream(lambda result, error: answers.put(error or result))
        official.async_stream_infer("lora_stream", inputs=inputs, request_id="1")
        assert answers.get(timeout=30).as_numpy("text_output").tolist() == [b" Paris"]
        official.stop_stream(cancel_requests=True)
    server.wait_for_log(CANCELLING, mark)
    server.wait_for_log(CANCELLED, mark)
    last = [answers.get_nowait() for _ in range(answers.qsize())][-1]
    assert isinstance(last, InferenceServerException)
    assert last.status() == "StatusCode.CANCELLED"
    assert server.log_since(mark).count(CANCELLED) == 1


def _official_input(request: Any) -> triton_grpc.InferInput:
    (tensor,), (content,) = request.inputs, request.raw_input_contents
    found = triton_grpc.InferInput(tensor.name, list(tensor.shape), tensor.datatype)
    found._raw_content = content
    return found


def test_cancel_of_a_unary_call(server: Server, client: Client) -> None:
    mark = server.log_mark()
    fields = {"text_input": PROMPT, "credential": server.keys["admin"]}
    request = grpc_request("lora_infer", {**fields, "sampling_parameters": sampling(**LONG)})
    call = client.stub.ModelInfer.future(request, timeout=30)
    threading.Timer(0.5, call.cancel).start()
    with pytest.raises(grpc.FutureCancelledError):
        call.result(timeout=30)
    server.wait_for_log(CANCELLING, mark)
    server.wait_for_log(CANCELLED, mark)


# Health -------------------------------------------------------------------------------------------


def test_a_healthy_engine_answers_and_stays_ready(client: Client) -> None:
    for _ in range(3):
        assert client.http.get("/v2/models/vllm_lora/ready").status_code == 200
        assert (
            client.infer_grpc(
                text_input=PROMPT, sampling_parameters=sampling(), exclude_input_in_output=True
            ).text
            == ANSWER
        )
