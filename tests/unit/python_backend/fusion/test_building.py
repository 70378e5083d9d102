"""Mixtures of staged adapters, as files: what the engine will read, against dense matrices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from python_backend.adapters import staging, validation
from python_backend.errors import InvalidArgument
from python_backend.fusion.building import Builder
from python_backend.fusion.recipe import Recipe
from python_backend.fusion.source import Source, Sources
from python_backend.ticket import Part
from tests.badadapters import Adapter, Shapes, good, target
from tests.badadapters.files import CONFIG_FILE, WEIGHTS_FILE, Array

SHAPES = Shapes(layers=2, hidden=32, kv=16, intermediate=48, vocab=64)
TARGET = target(SHAPES)
DIGEST = "f" * 64
Q, V, DOWN = "self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"


class House:
    """Staged adapters by name, and mixtures of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.builder = Builder(TARGET, root / "staged")
        self.folders: dict[str, Path] = {}
        self._write("plain", good(SHAPES, modules=(Q, V, DOWN), dtype="F32"), 0)
        self._write("halves", good(SHAPES, rank=8, modules=(Q,), dtype="F16", lora_alpha=3), 1)
        self._write("rslora", good(SHAPES, rank=4, modules=(V, DOWN), use_rslora=True), 2)
        patterns = good(SHAPES, rank=2, modules=(Q, V), dtype="BF16", lora_alpha=5)
        patterns.config |= {"rank_pattern": {"v_proj": 6}, "alpha_pattern": {"layers.1.*q_proj": 1}}
        for layer in range(SHAPES.layers):
            patterns.add(f"model.layers.{layer}.{V}", SHAPES.modules()[V], 6, "BF16")
        self._write("patterns", patterns, 3)
        ends = good(SHAPES, rank=2, modules=(Q,), dtype="F64")
        ends.add("model.embed_tokens", (SHAPES.vocab, SHAPES.hidden), 2)
        ends.add("lm_head", (SHAPES.hidden, SHAPES.vocab), 2)
        self._write("ends", ends, 4)
        bare = good(SHAPES, modules=(Q,))
        bare.tensors = {n.removeprefix("base_model.model."): t for n, t in bare.tensors.items()}
        self._write("bare", bare, 5)

    def _write(self, name: str, adapter: Adapter, seed: int) -> None:
        for number, (key, tensor) in enumerate(adapter.tensors.items()):
            noise = Array.noise(tensor.shape, tensor.dtype, 100 * seed + number)
            adapter.tensors[key] = noise
        adapter.write(self.root / name)
        staged = staging.stage(self.root / name, self.root / "staged", TARGET, 1 << 24)
        self.folders[name] = staged.path

    def mix(self, *parts: tuple[str, float]) -> Path:
        plan = self.builder.plan([(self.folders[name], weight) for name, weight in parts])
        return self.builder.write(plan, DIGEST)

    def deltas(self, folder: Path) -> dict[str, np.ndarray]:
        """Dense changes by module, in float64, as the file and its configuration say."""
        source = Sources(TARGET).read(folder)
        return {path: dense(source, path) for path in source.modules}

    def wanted(self, *parts: tuple[str, float]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, weight in parts:
            for path, change in self.deltas(self.folders[name]).items():
                found[path] = found.get(path, 0.0) + weight * change
        return found


def dense(source: Source, path: str) -> np.ndarray:
    with open(source.weights, "rb") as file:
        factors = source.factors(file, path)
    return factors.scale * (factors.b.astype(np.float64) @ factors.a.astype(np.float64))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("fusion"))


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for path, change in wanted.items():
        largest = float(np.abs(change).max()) or 1.0
        np.testing.assert_allclose(found[path], change, rtol=0, atol=1e-6 * largest, err_msg=path)


def test_scalings_are_those_of_peft(house: House) -> None:
    source = Sources(TARGET).read(house.folders["patterns"])
    scales = {path.split("layers.")[1]: module.scale for path, module in source.modules.items()}
    assert scales == {f"0.{Q}": 5 / 2, f"1.{Q}": 1 / 2, f"0.{V}": 5 / 6, f"1.{V}": 5 / 6}
    source = Sources(TARGET).read(house.folders["rslora"])
    assert {module.scale for module in source.modules.values()} == {8 / 2}


@pytest.mark.parametrize(
    "parts",
    [
        [("plain", 0.6), ("halves", 0.3)],
        [("plain", 0.5), ("rslora", -0.25), ("patterns", 1.25)],
        [("patterns", 0.7), ("ends", 0.2), ("bare", 0.1)],
        [("plain", 0.0), ("bare", 1.0)],
    ],
    ids=lambda parts: "+".join(name for name, _ in parts),
)
def test_a_mixture_is_the_sum_of_its_parts(
    house: House, parts: Sequence[tuple[str, float]]
) -> None:
    before = {name: (house.folders[name] / WEIGHTS_FILE).read_bytes() for name, _ in parts}
    folder = house.mix(*parts)
    same(house.deltas(folder), house.wanted(*parts))
    config = json.loads((folder / CONFIG_FILE).read_text())
    assert config["use_rslora"] is False and config["r"] == config["lora_alpha"]
    # What is read by the engine passes the validation that everything has to pass.
    with open(folder / WEIGHTS_FILE, "rb") as file:
        validated = validation.validate(json.dumps(config).encode(), file, TARGET, 1 << 24)
    assert validated.config == config
    for name, content in before.items():
        assert (house.folders[name] / WEIGHTS_FILE).read_bytes() == content


@pytest.mark.parametrize("name", ["plain", "halves", "rslora", "patterns", "ends", "bare"])
def test_identity_laws(house: House, name: str) -> None:
    alone = house.deltas(house.folders[name])
    same(house.deltas(house.mix((name, 1.0))), alone)
    same(house.deltas(house.mix((name, 0.5), (name, 0.5))), alone)
    nothing = {path: np.zeros_like(change) for path, change in alone.items()}
    same(house.deltas(house.mix((name, 0.0))), nothing)
    same(house.deltas(house.mix((name, 1.0), (name, -1.0))), nothing)


def test_the_order_of_parts_does_not_matter(house: House) -> None:
    one = house.deltas(house.mix(("plain", 0.6), ("patterns", 0.3)))
    same(house.deltas(house.mix(("patterns", 0.3), ("plain", 0.6))), one)


def test_true_ranks_are_added_before_anything_is_allocated(house: House) -> None:
    # 8 by its configuration, 2 and 6 by its patterns: 16 fit, and 18 do not.
    fits = [("halves", 0.5), ("patterns", 0.5), ("patterns", 0.5), ("plain", 0.1)]
    assert max(house.builder.plan(paths(house, fits)).ranks.values()) == 16
    before = sorted(path.name for path in (house.root / "staged").iterdir())
    with pytest.raises(InvalidArgument, match="add up to 20; this engine takes 16"):
        house.builder.plan(paths(house, [*fits, ("bare", 0.1)]))
    assert sorted(path.name for path in (house.root / "staged").iterdir()) == before


def paths(house: House, parts: Sequence[tuple[str, float]]) -> list[tuple[Path, float]]:
    return [(house.folders[name], weight) for name, weight in parts]


def test_values_that_no_half_can_hold(house: House, tmp_path: Path) -> None:
    large = good(SHAPES, modules=(Q,), dtype="F32", lora_alpha=4)
    for key, tensor in large.tensors.items():
        large.tensors[key] = Array.of(np.full(tensor.shape, 60_000.0), "F32")
    large.write(tmp_path / "large")
    staged = staging.stage(tmp_path / "large", house.root / "staged", TARGET, 1 << 24)
    plan = house.builder.plan([(staged.path, 1.5)])
    with pytest.raises(InvalidArgument, match="too large"):
        house.builder.write(plan, "e" * 64)
    assert not (house.root / "staged" / ("e" * 64)).exists()
    assert not list((house.root / "staged").glob(f"{staging.TEMPORARY}*"))


def test_the_file_is_as_large_as_planned_and_read_only(house: House) -> None:
    plan = house.builder.plan(paths(house, [("plain", 0.5), ("ends", 0.5)]))
    folder = house.builder.write(plan, DIGEST)
    size = (folder / WEIGHTS_FILE).stat().st_size
    assert plan.size_bytes < size < plan.size_bytes + 8192
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {0o444} and folder.is_absolute()


class TestRecipe:
    ONE, TWO = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()

    def recipe(self, *parts: tuple[str, float]) -> Recipe:
        return Recipe(tuple(Part(f"fin_{d[0]}_v1", d, w) for d, w in parts))

    def test_the_digest_tells_contents_and_weights(self) -> None:
        recipes = [
            self.recipe((self.ONE, 0.6), (self.TWO, 0.3)),
            self.recipe((self.ONE, 0.3), (self.TWO, 0.6)),
            self.recipe((self.ONE, 0.6)),
            self.recipe((self.ONE, -0.6), (self.TWO, 0.3)),
            self.recipe((self.TWO, 0.6), (self.ONE, 0.3)),
        ]
        assert len({recipe.digest for recipe in recipes}) == len(recipes)
        assert all(len(recipe.digest) == 64 for recipe in recipes)

    def test_names_are_for_people(self) -> None:
        one = Recipe((Part("fin_a_v1", self.ONE, 0.5),))
        two = Recipe((Part("svc_b_v1", self.ONE, 0.5),))
        assert one.digest == two.digest
        assert (one.expression, two.expression) == ("fin_a_v1*0.5", "svc_b_v1*0.5")
