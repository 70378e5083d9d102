"""The file of a gate: what was written comes back, and nothing else is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing_keys import KeyFile
from python_backend.fusion import gate_file
from python_backend.fusion.gate_file import GATE_FILE, GATE_NAME, GateFileError
from python_backend.fusion.gating import Gate
from tests.unit.python_backend.fusion.gate_house import HIDDEN, NAMES, make_gate, random
from tools.gate.command import sign_gate

BASE = "0" * 64


def read(folder: Path, **changes: Any) -> Gate:
    return gate_file.read(folder, **{"base": BASE, "hidden": HIDDEN, **changes})


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    gate = make_gate()
    gate_file.write(tmp_path / "gate", gate)
    found = read(tmp_path / "gate")
    assert (found.names, found.base) == (NAMES, BASE)
    for name in ("query", "keys", "values", "readout"):
        np.testing.assert_array_equal(getattr(found, name), getattr(gate, name))


def changed(folder: Path, tensors: dict[str, Any], **metadata: str) -> None:
    gate = make_gate()
    whole = {name: getattr(gate, name) for name in ("query", "keys", "values", "readout")}
    whole = {name: value for name, value in {**whole, **tensors}.items() if value is not None}
    texts = {"format": gate_file.FORMAT, "adapters": json.dumps(NAMES), "base": BASE, **metadata}
    safetensors.numpy.save_file(whole, folder / GATE_FILE, texts)


def with_nan() -> Any:
    values = random(4, 8)
    values[1, 1] = np.nan
    return values


@pytest.mark.parametrize(
    ("tensors", "metadata", "problem"),
    [
        ({"keys": random(3, 8)}, {}, r"keys is float32 \[3, 8\]; must be float32 \[4, 8\]"),
        ({"query": random(HIDDEN + 1, 8)}, {}, "query is float32"),
        ({"query": random(HIDDEN)}, {}, "query is not"),
        ({"values": random(4, 8).astype(np.float64)}, {}, "values is float64"),
        ({"values": with_nan()}, {}, "NaN, infinite or huge"),
        ({"values": random(4, 8) * np.float32(np.inf)}, {}, "NaN, infinite or huge"),
        ({"keys": random(4, 8) * np.float32(1e30)}, {}, "NaN, infinite or huge"),
        ({"readout": np.array([0.0, 1.0], np.float32)}, {}, "above 0"),
        ({"more": random(1)}, {}, "not a gate"),
        ({"readout": None}, {}, "not a gate"),
        ({}, {"format": "lora-fusion-gate-2"}, "not a gate"),
        ({}, {"base": "1" * 64}, "another base model"),
        ({}, {"base": "x"}, "not a gate"),
        ({}, {"extra": "x"}, "not a gate"),
        ({}, {"adapters": "[]"}, "distinct lora_ids"),
        ({}, {"adapters": '["fin_risk_v1", "fin_risk_v1", "svc_chat_v1"]'}, "distinct lora_ids"),
        ({}, {"adapters": '["fin_risk_v1", "../etc", "svc_chat_v1"]'}, "distinct lora_ids"),
        ({}, {"adapters": '["fin_risk_v1", 1, "base"]'}, "distinct lora_ids"),
        ({}, {"adapters": "{"}, "distinct lora_ids"),
    ],
)
def test_what_is_no_gate_is_refused(
    tmp_path: Path, tensors: dict[str, Any], metadata: dict[str, str], problem: str
) -> None:
    changed(tmp_path, tensors, **metadata)
    with pytest.raises(GateFileError, match=problem):
        read(tmp_path)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def longer(data: bytes) -> bytes:
    return data + b"\0\0\0\0"


def twice(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip().replace(b'"keys":', b'"query":', 1)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def nothing(data: bytes) -> bytes:
    return b""


def pickled(data: bytes) -> bytes:
    return b"\x80\x04cos\nsystem\n(S'true'\ntR."


@pytest.mark.parametrize("damage", [cut, longer, twice, nothing, pickled])
def test_damaged_files_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = gate_file.write(tmp_path, make_gate())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(GateFileError, match="not a gate made by train-gate"):
        read(tmp_path)


def test_no_folder_no_file_a_link_and_a_file_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GateFileError, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(GateFileError, match="No such file"):
        read(tmp_path)
    real = gate_file.write(tmp_path / "real", make_gate())
    (tmp_path / GATE_FILE).symlink_to(real)
    with pytest.raises(GateFileError, match="symbolic links"):
        read(tmp_path)
    monkeypatch.setattr(gate_file, "MAX_BYTES", 100)
    with pytest.raises(GateFileError, match="larger than 100 bytes"):
        read(tmp_path / "real")


def keys(tmp_path: Path, glob: str = "fusion_*") -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(
        f"version: 1\nkeys:\n- {{id: k1, secret: '{'ab' * 32}', adapters: ['{glob}']}}\n"
    )
    path.chmod(0o600)
    return path


def test_a_gate_that_must_be_signed(tmp_path: Path) -> None:
    file, folder = keys(tmp_path), tmp_path / "gate"
    path = gate_file.write(folder, make_gate())
    signatures = SignaturePolicy((GATE_NAME,), KeyFile(file))
    with pytest.raises(GateFileError, match="is missing"):
        read(folder, signatures=signatures)
    sign_gate(folder, file, "k1")
    assert read(folder, signatures=signatures).names == NAMES
    gate_file.write(folder, make_gate(readout=np.array([3.0, 1.0], np.float32)))
    with pytest.raises(GateFileError, match="not as it was signed"):
        read(folder, signatures=signatures)
    # Signed again it is good, and an edited one is refused even where it need not be signed.
    sign_gate(folder, file, "k1")
    read(folder, signatures=signatures)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(GateFileError, match="not as it was signed"):
        read(folder, signatures=SignaturePolicy((), KeyFile(file)))


def test_a_key_for_adapters_alone_does_not_vouch_for_a_gate(tmp_path: Path) -> None:
    gate_file.write(tmp_path / "gate", make_gate())
    sign_gate(tmp_path / "gate", keys(tmp_path), "k1")
    signatures = SignaturePolicy((), KeyFile(keys(tmp_path, "fin_*")))
    with pytest.raises(GateFileError, match="not for this adapter"):
        read(tmp_path / "gate", signatures=signatures)
