"""The demo folder as a whole, around a model of 64 tokens."""

import hashlib
import io
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

from safetensors.torch import save_file  # noqa: E402

from python_backend.adapters.seal import SignaturePolicy  # noqa: E402
from python_backend.adapters.signing_keys import KeyFile  # noqa: E402
from python_backend.fusion import gate_file  # noqa: E402
from tests.unit.python_backend.fusion.gate_house import HIDDEN, NAMES, make_gate  # noqa: E402
from tools.demo import command, folder, gate  # noqa: E402
from tools.demo.errors import DemoError  # noqa: E402
from tools.demo.words import listed_words  # noqa: E402

Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """``tools demo`` with a tiny base model and one trained adapter."""
    model = tmp_path / "base"
    model.mkdir()
    generator = torch.Generator().manual_seed(1)
    weights = {
        "model.embed_tokens.weight": torch.randn(64, 8, generator=generator),
        "model.norm.weight": torch.ones(8),
    }
    save_file(weights, model / "model.safetensors")
    (model / "config.json").write_text('{"vocab_size": 64, "num_hidden_layers": 3}')
    vocabulary = {word: number for number, word in enumerate(["?", *listed_words()[:63]])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))

    trained = tmp_path / "trained" / "fin_risk_v1"
    trained.mkdir(parents=True)
    (trained / "adapter_config.json").write_text("{}")
    (trained / "adapter_model.safetensors").write_bytes(b"one")
    monkeypatch.setattr(folder, "TRAINED", trained.parent)
    monkeypatch.setattr(folder, "cached_probe", lambda *_: torch.ones(16))
    monkeypatch.setattr(command, "converted_model", lambda *_: model)
    gate_made = gate_file.write(trained.parent / "gate", make_gate())
    monkeypatch.setattr(gate, "cached_gate", lambda *_: gate_made)

    def run(markers: int = 2, force: bool = False, new_keys: bool = False) -> str:
        console = Console(file=io.StringIO())
        out = tmp_path / ".demo"
        return command.make_demo(out, markers, force=force, new_keys=new_keys, console=console)

    return run


def hashes(out: Path) -> list[str]:
    policy = yaml.safe_load((out / "policy.yaml").read_text())
    return [principal["api_key_sha256"][0] for principal in policy["principals"]]


def key_hashes(out: Path) -> list[str]:
    keys = json.loads((out / "keys.json").read_text())
    return [hashlib.sha256(keys[n].encode()).hexdigest() for n in ("fin", "svc", "qa", "admin")]


def test_the_first_run_makes_everything(make: Make, tmp_path: Path) -> None:
    out = tmp_path / ".demo"
    assert make(markers=2) == "made with 2 markers and fresh keys"
    assert folder.is_demo(out)
    words = listed_words()
    assert json.loads((out / "markers.json").read_text()) == {
        "mark_w0001_v1": words[0],
        "mark_w0002_v1": words[1],
    }
    assert sorted(path.name for path in (out / "adapters").iterdir()) == [
        "fin_risk_v1",
        "mark_w0001_v1",
        "mark_w0002_v1",
    ]
    config = json.loads((out / "adapters/mark_w0001_v1/adapter_config.json").read_text())
    assert config["layers_to_transform"] == [2]
    assert stat.S_IMODE((out / "keys.json").stat().st_mode) == 0o600
    assert hashes(out) == key_hashes(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".demo", "base", "trained"]


def test_the_gate_is_signed_with_the_folders_own_key(make: Make, tmp_path: Path) -> None:
    out = tmp_path / ".demo"
    make()
    keys = out / "signing-keys.yaml"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    signatures = SignaturePolicy((gate_file.GATE_NAME,), KeyFile(keys))
    read = gate_file.read(out / "gate", base="0" * 64, hidden=HIDDEN, signatures=signatures)
    assert read.names == NAMES
    secret = yaml.safe_load(keys.read_text())["keys"][0]["secret"]
    make(force=True)
    assert yaml.safe_load(keys.read_text())["keys"][0]["secret"] != secret


def test_a_folder_without_a_gate_gets_one(make: Make, tmp_path: Path) -> None:
    make()
    shutil.rmtree(tmp_path / ".demo" / "gate")
    assert make() == "all adapters present, gate added, keys unchanged"
    assert (tmp_path / ".demo/gate/adapter.sig.json").is_file()


def test_a_second_run_changes_nothing(make: Make, tmp_path: Path) -> None:
    make()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / ".demo").rglob("*")}
    assert make() == "all adapters present, keys unchanged"
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / ".demo").rglob("*")} == before


def test_more_markers_are_added_beside_the_old_ones(make: Make, tmp_path: Path) -> None:
    out = tmp_path / ".demo"
    make(markers=2)
    old = (out / "adapters/mark_w0001_v1/adapter_model.safetensors").stat().st_ino
    keys = (out / "keys.json").read_text()
    assert make(markers=5) == "3 adapters added, keys unchanged"
    assert list(json.loads((out / "markers.json").read_text()).values()) == listed_words()[:5]
    assert (out / "adapters/mark_w0001_v1/adapter_model.safetensors").stat().st_ino == old
    assert (out / "keys.json").read_text() == keys


def test_a_newly_trained_adapter_replaces_the_old_one(make: Make, tmp_path: Path) -> None:
    make()
    (tmp_path / "trained/fin_risk_v1/adapter_model.safetensors").write_bytes(b"two")
    assert make() == "1 adapters added, keys unchanged"
    served = tmp_path / ".demo/adapters/fin_risk_v1/adapter_model.safetensors"
    assert served.read_bytes() == b"two"


def test_new_keys_keep_edits_of_the_policy(make: Make, tmp_path: Path) -> None:
    out = tmp_path / ".demo"
    make()
    with (out / "policy.yaml").open("a") as file:
        file.write("# an edit\n")
    old = hashes(out)
    assert make(new_keys=True) == "all adapters present, keys replaced"
    assert set(hashes(out)).isdisjoint(old)
    assert hashes(out) == key_hashes(out)
    assert (out / "policy.yaml").read_text().endswith("# an edit\n")
    assert stat.S_IMODE((out / "keys.json").stat().st_mode) == 0o600


def test_force_makes_it_afresh(make: Make, tmp_path: Path) -> None:
    out = tmp_path / ".demo"
    make(markers=3)
    old = hashes(out)
    (out / "stray").touch()
    make(markers=1, force=True)
    assert set(hashes(out)).isdisjoint(old)
    assert not (out / "stray").exists()
    assert list(json.loads((out / "markers.json").read_text())) == ["mark_w0001_v1"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_something_else_is_never_replaced(
    make: Make, tmp_path: Path, force: bool
) -> None:
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "thesis.txt").write_text("years of work")
    with pytest.raises(DemoError, match="is not a demo folder; move it away"):
        make(force=force)
    assert (tmp_path / ".demo" / "thesis.txt").read_text() == "years of work"


def test_a_failure_leaves_no_half_made_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DemoError("no words")

    monkeypatch.setattr(folder, "choose_words", fail)
    with pytest.raises(DemoError):
        make()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "trained"]


def test_a_lost_markers_file_is_named(make: Make, tmp_path: Path) -> None:
    make()
    (tmp_path / ".demo" / "markers.json").write_text("{")
    with pytest.raises(DemoError, match=r"markers\.json: .*--force"):
        make()
    shutil.rmtree(tmp_path / ".demo")
