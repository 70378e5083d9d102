"""Adapters of every common maker answer as their reference: the staged tensors are theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import deserialize

from python_backend.adapters import seal, signing, source_folder
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing_keys import KeyFile
from python_backend.adapters.staging import StagedAdapter, stage
from tests.badadapters import good, target
from tests.badadapters.files import CONFIG_FILE, WEIGHTS_FILE, Adapter, Array
from tests.badadapters.shard_kinds import INDEX_FILE, PARTS, shard

LIMIT = 64 << 20


def staged(root: Path, name: str = "source") -> StagedAdapter:
    return stage(root / name, root / "staged", target(), LIMIT)


read: Callable[[bytes], list[tuple[str, Any]]] = deserialize


def tensors(*files: Path) -> dict[str, Any]:
    """Each tensor's dtype, shape and bytes, as the format's own library reads them."""
    return {name: value for file in files for name, value in read(file.read_bytes())}


def mixed() -> Adapter:
    """Each module in another dtype, with ranks of its own."""
    adapter = good(rank_pattern={"v_proj": 2}, alpha_pattern={"v_proj": 7})
    for at, name in enumerate(list(adapter.tensors)):
        old = adapter.tensors[name].shape
        shape = tuple(2 if size == 4 else size for size in old) if "v_proj" in name else old
        adapter.tensors[name] = Array.noise(shape, ("F16", "BF16", "F32", "F64")[at // 2], at)
    return adapter


def test_parts_are_staged_as_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shard(mixed(), folder)
    copy = staged(tmp_path)
    assert {path.name for path in copy.path.iterdir()} == {CONFIG_FILE, WEIGHTS_FILE}
    written = tensors(copy.path / WEIGHTS_FILE)
    assert written == tensors(*(folder / part for part in PARTS))
    assert copy.size_bytes == (copy.path / WEIGHTS_FILE).stat().st_size
    assert len({value["dtype"] for value in written.values()}) == 4
    # Staged again, it is the same copy; another value is another version.
    assert staged(tmp_path) == copy
    whole = bytearray((folder / PARTS[1]).read_bytes())
    whole[-8] ^= 1
    (folder / PARTS[1]).write_bytes(whole)
    assert staged(tmp_path).digest != copy.digest


def test_one_part_and_no_metadata_will_do(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    adapter = good()
    adapter.write(folder)
    (folder / WEIGHTS_FILE).rename(folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(adapter.tensors, "model.safetensors")}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    written = tensors(staged(tmp_path).path / WEIGHTS_FILE)
    assert written == tensors(folder / "model.safetensors")


def test_the_limit_is_on_all_parts_together(tmp_path: Path) -> None:
    shard(good(), tmp_path / "source")
    size = staged(tmp_path).size_bytes
    stage(tmp_path / "source", tmp_path / "other", target(), size)
    with pytest.raises(AdapterRejected) as caught:
        stage(tmp_path / "source", tmp_path / "other", target(), size - 1)
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_part_cut_while_it_is_read(tmp_path: Path) -> None:
    shard(good(), tmp_path / "source")
    with source_folder.opened(tmp_path / "source", LIMIT) as files:
        (tmp_path / "source" / PARTS[1]).write_bytes(b"")
        with pytest.raises(AdapterRejected) as caught:
            files.digest()
    assert caught.value.reason is Reason.TRUNCATED and PARTS[1] in caught.value.sentence


def test_a_signature_covers_index_and_parts(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shard(good(), folder)
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{id: k, secret: '{'ab' * 32}', adapters: ['fin_*']}}]")
    keys.chmod(0o600)
    unsigned = signing.Signature(
        key_id="k", lora_id="fin_risk_v1", created=1, files=seal.manifest(folder)
    )
    signed = signing.sign(unsigned, bytes.fromhex("ab" * 32))
    (folder / signing.SIGNATURE_FILE).write_text(signed.to_json())
    policy = SignaturePolicy(("fin_*",), KeyFile(keys))

    def take() -> StagedAdapter:
        return stage(
            folder, tmp_path / "s", target(), LIMIT, lora_id="fin_risk_v1", signatures=policy
        )

    assert len(unsigned.files) == 4 and take().rank == 4
    for name in (INDEX_FILE, *PARTS):
        before = (folder / name).read_bytes()
        # As JSON and as a safetensors file all the same: a space at the end, a bit of a value.
        changed = before + b" " if name == INDEX_FILE else before[:-2] + b"\1" + before[-1:]
        (folder / name).write_bytes(changed)
        with pytest.raises(AdapterRejected) as caught:
            take()
        assert caught.value.reason is Reason.BAD_SIGNATURE and name in caught.value.sentence
        (folder / name).write_bytes(before)


@pytest.mark.parametrize(
    "modules",
    [["q_proj", "v_proj"], "all-linear", r".*\.layers\.[01]\..*\.(q|v)_proj", "((a+)+)+$", None],
)
def test_target_modules_of_any_kind(tmp_path: Path, modules: Any) -> None:
    good(target_modules=modules).write(tmp_path / "source")
    copy = staged(tmp_path)
    config = json.loads((copy.path / CONFIG_FILE).read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert (copy.path / WEIGHTS_FILE).read_bytes() == (
        tmp_path / "source" / WEIGHTS_FILE
    ).read_bytes()


def test_names_without_the_prefix(tmp_path: Path) -> None:
    adapter = good()
    adapter.write(tmp_path / "plain")
    adapter.tensors = {
        name.removeprefix("base_model.model."): array for name, array in adapter.tensors.items()
    }
    adapter.write(tmp_path / "source")
    copy, plain = staged(tmp_path), staged(tmp_path, "plain")
    for folder in (tmp_path / "source", copy.path):
        written = tensors(folder / WEIGHTS_FILE)
        full = {f"base_model.model.{name}": value for name, value in written.items()}
        assert full == tensors(plain.path / WEIGHTS_FILE)
    # Both names of one matrix in one file are one too many.
    adapter.tensors |= {f"base_model.model.{k}": v for k, v in adapter.tensors.items()}
    shutil.rmtree(tmp_path / "source")
    adapter.write(tmp_path / "source")
    with pytest.raises(AdapterRejected) as caught:
        staged(tmp_path)
    assert caught.value.reason is Reason.DUPLICATE_TENSOR
