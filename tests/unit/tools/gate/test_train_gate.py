"""The command ``train-gate``, on a model of fifty words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from typer.testing import CliRunner, Result

from python_backend.fusion import embeddings, gate_file
from tests.unit.python_backend.fusion.gate_house import VOCABULARY, make_model
from tests.unit.tools.gate.test_training import prompts
from tools.__main__ import app
from tools.demo import gate as demo_gate


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    make_model(folder, hidden=64)
    words = {str(number): number for number in range(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    lines = [{"prompt": e.prompt, "mixture": e.target} for e in prompts(30)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train-gate", *map(str, arguments)])


def test_it_trains_writes_and_says_what_the_gate_is_worth(
    model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "gate"
    done = run(data, "--model", model, "--out", out, "--epochs", 5)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{out}/gate.safetensors: trained in ")
    names = ["held-out prompts", "accuracy", "weight error", "calibration error (ECE)"]
    assert [line.split(":")[0] for line in lines[1:]] == names
    assert all(float(line.split(": ")[1]) >= 0.0 for line in lines[1:])
    rows = embeddings.open_model(model)
    found = gate_file.read(out, base=rows.digest, hidden=64)
    assert found.names == ("fin_risk_v1", "svc_chat_v1")
    assert sum(found.weights(rows.rows([1, 2]), found.names).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"prompt": "1", "adapter": "nobody"}', "data.jsonl:1: 'nobody' is not a lora_id"),
        ('{"prompt": "1", "adapter": "base"}', "give"),
        ("", "give"),
    ],
)
def test_what_cannot_be_learnt_from(model: Path, data: Path, text: str, problem: str) -> None:
    data.write_text(text)
    done = run(data, "--model", model, "--out", data.parent / "gate")
    assert done.exit_code == 1
    assert problem in " ".join(done.stderr.split())
    assert not (data.parent / "gate").exists()


def test_a_model_without_embeddings_or_tokenizer(model: Path, data: Path) -> None:
    (model / "tokenizer.json").unlink()
    done = run(data, "--model", model, "--out", data.parent / "gate")
    assert (done.exit_code, "fast tokenizer" in " ".join(done.stderr.split())) == (1, True)
    done = run(data, "--model", data.parent, "--out", data.parent / "gate")
    assert (done.exit_code, "no token embeddings" in " ".join(done.stderr.split())) == (1, True)


def test_it_can_sign_what_it_has_trained(model: Path, data: Path, tmp_path: Path) -> None:
    keys, out = tmp_path / "keys.yaml", tmp_path / "gate"
    keys.write_text(demo_gate.keys_text())
    keys.chmod(0o600)
    common = (data, "--model", model, "--out", out, "--epochs", 1, "--keys", keys, "--key-id")
    assert run(*common, "demo").exit_code == 0
    assert (out / "adapter.sig.json").is_file()
    done = run(*common, "other")
    assert (done.exit_code, "is not in the server's keys file" in done.stderr) == (1, True)


def test_the_demos_gate_is_trained_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_gate, "GATES", tmp_path / "gates")
    monkeypatch.setattr(demo_gate, "demo_examples", lambda: prompts(10))
    said: list[str] = []
    first = demo_gate.cached_gate(model, said.append, lambda done, total: None)
    again = demo_gate.cached_gate(model, said.append, lambda done, total: None)
    assert (again, said) == (first, ["training the gate (once)"])
    make_model(model, seed=1, hidden=64)
    other = demo_gate.cached_gate(model, said.append, lambda done, total: None)
    assert (other != first, len(said)) == (True, 2)
