from __future__ import annotations

from pathlib import Path

from tools.serving import log

STARTED = [
    'I1130 16:19:44.0 95 model_lifecycle.cc:472] "loading: lora_gate:1"',
    'I1130 16:19:44.1 95 model_lifecycle.cc:472] "loading: vllm_lora:1"',
    "I1130 16:19:45.0 95 model_lifecycle.cc:839] \"successfully loaded 'lora_gate'\"",
]
FAILED = [
    'E1130 16:18:58.4 88 server.cc:241] "CudaDriverHelper has not been initialized."',
    "E1130 16:19:44.7 95 model_lifecycle.cc:642] \"failed to load 'vllm_lora' version 1: Internal: "
    'SettingsError: serving.yaml: model: no such folder\\n\\nAt:\\n  model.py(7): initialize\\n"',
    "Error: Failed to initialize NVML",
    "error: creating server: Internal - failed to load all models",
]


def test_loading_names_what_is_not_loaded_yet() -> None:
    assert log.loading(STARTED) == {"vllm_lora"}


def test_how_far_the_adapters_are() -> None:
    told = [f'I1130 16:19:50.0 95 python_be.cc:1] "warming: {n} of 800 adapters"' for n in (7, 120)]
    assert log.warming(STARTED) == ""
    assert log.warming(STARTED + told) == "120 of 800"


def test_the_reason_is_the_model_s_own_words() -> None:
    first, *_ = log.reason(FAILED)
    assert first == (
        "failed to load 'vllm_lora' version 1: Internal: SettingsError: "
        "serving.yaml: model: no such folder"
    )


def test_without_a_model_s_error_the_server_s_counts_and_then_the_end() -> None:
    assert log.reason(FAILED[2:]) == [FAILED[-1]]
    assert log.reason(["a", "", "b"]) == ["a", "b"]


def test_errors_of_triton_and_vllm_are_shown() -> None:
    assert log.is_error("E1130 16:19:44.7 95 x.cc:1] broken")
    assert log.is_error("(EngineCore pid=12) ERROR 11-30 16:00 core.py: broken")
    assert not log.is_error("I1130 16:19:44.7 95 x.cc:1] ERROR rate 0")
    assert not log.is_error(FAILED[0]), "every machine without a GPU says so"


def test_follower_gives_whole_lines_once(tmp_path: Path) -> None:
    file = tmp_path / "log"
    follow = log.Follower(file)
    assert follow.new_lines() == []
    file.write_text("one\ntw")
    assert follow.new_lines() == ["one"]
    with file.open("a") as more:
        more.write("o\n")
    assert follow.new_lines() == ["two"]


def test_rotate_keeps_the_run_before(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "server.log"
    log.rotate(file)
    file.write_text("first")
    log.rotate(file)
    assert not file.exists()
    assert (tmp_path / "logs" / "server.log.1").read_text() == "first"
