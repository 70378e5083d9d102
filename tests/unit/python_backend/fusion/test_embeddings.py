"""Rows of the base model's embeddings, as another reader has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import save_file

from python_backend.fusion.embeddings import EmbeddingsError, open_model
from tests.unit.python_backend.fusion.gate_house import HIDDEN, VOCABULARY, make_model, random


def test_rows_of_one_file(tmp_path: Path) -> None:
    matrix = make_model(tmp_path)
    found = open_model(tmp_path)
    assert (found.name, found.hidden) == ("model.embed_tokens.weight", HIDDEN)
    assert isinstance(found.raw, np.memmap)
    np.testing.assert_array_equal(found.rows([3, 0, 3]), matrix[[3, 0, 3]])
    assert found.rows([-1, VOCABULARY, 7]).shape == (1, HIDDEN), "ids that there are not"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    matrix = torch.from_numpy(random(VOCABULARY, HIDDEN)).to(dtype)
    save_file({"transformer.wte.weight": matrix}, tmp_path / "model.safetensors")
    rows = open_model(tmp_path).rows([1, 5])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, matrix[[1, 5]].float().numpy())


def test_rows_of_several_files(tmp_path: Path) -> None:
    matrix = make_model(tmp_path / "one")
    folder = tmp_path / "two"
    folder.mkdir()
    shutil.copy(tmp_path / "one/model.safetensors", folder / "model-00002-of-00002.safetensors")
    places = {"model.embed_tokens.weight": "model-00002-of-00002.safetensors", "x": "other"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    np.testing.assert_array_equal(open_model(folder).rows([2]), matrix[[2]])
    assert open_model(folder).digest == open_model(tmp_path / "one").digest


def test_models_are_told_apart(tmp_path: Path) -> None:
    make_model(tmp_path / "a")
    make_model(tmp_path / "b", seed=10)
    make_model(tmp_path / "c", name="wte.weight")
    digests = {open_model(tmp_path / name).digest for name in "abc"}
    assert len(digests) == 3


def test_what_has_no_embeddings_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingsError, match="no token embeddings"):
        open_model(tmp_path)
    safetensors.numpy.save_file({"x": random(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(EmbeddingsError, match="no token embeddings"):
        open_model(tmp_path)
    whole = {"wte.weight": np.zeros((4, 4), np.int32)}
    safetensors.numpy.save_file(whole, tmp_path / "model.safetensors")
    with pytest.raises(EmbeddingsError, match=r"I32 \[4, 4\]"):
        open_model(tmp_path)
    make_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EmbeddingsError, match="cut off"):
        open_model(tmp_path)
