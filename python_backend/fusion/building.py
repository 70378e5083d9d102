"""Writes the exact adapter of a mixture beside the staged copies it is made of."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from python_backend.adapters import canonical, staging
from python_backend.adapters.peft_config import CONFIG_FILE, PeftConfig
from python_backend.adapters.target import Target
from python_backend.adapters.validation import MAX_MAGNITUDE
from python_backend.adapters.weights import WEIGHTS_FILE
from python_backend.errors import InvalidArgument
from python_backend.fusion import concat
from python_backend.fusion.source import Module, Source, Sources

#: Bytes of a float32.
_SIZE = 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """A mixture that fits the engine.

    Args:
        parts: each staged part with its weight.
        modules: of each module, by the engine's path, the first part's: the names it is given.
        ranks: of each module, all parts together.
        shapes: (in_features, out_features) of each module.
    """

    parts: Sequence[tuple[Source, float]]
    modules: Mapping[str, Module]
    ranks: Mapping[str, int]
    shapes: Mapping[str, tuple[int, int]]

    @property
    def size_bytes(self) -> int:
        """Of all its matrices."""
        return sum(_SIZE * rank * sum(self.shapes[path]) for path, rank in self.ranks.items())

    def config(self) -> bytes:
        """Its own ``adapter_config.json``: nothing of it is inherited, every scaling is 1."""
        ranks = {self.modules[path].path: rank for path, rank in self.ranks.items()}
        largest = max(ranks.values())
        peft = PeftConfig(r=largest, lora_alpha=float(largest))
        alphas = {path: float(rank) for path, rank in ranks.items()}
        return json.dumps(canonical.config(peft, ranks, alphas), indent=2).encode("ascii")


class Builder:
    """Makes mixtures; one thread at a time.

    Args:
        target: what the engine takes.
        staged_root: where staged copies lie, and mixtures too.
    """

    def __init__(self, target: Target, staged_root: Path) -> None:
        self._target, self._root = target, staged_root
        self._sources = Sources(target)

    def plan(self, parts: Sequence[tuple[Path, float]]) -> Plan:
        """What a mixture of staged ``parts``, each with its weight, would be. Reads headers only.

        Raises:
            InvalidArgument: their ranks together are more than the engine takes.
            OSError, AdapterRejected: a part is gone or damaged.
        """
        sources = [(self._sources.read(folder), weight) for folder, weight in parts]
        ranks = concat.summed_ranks(source.ranks for source, _ in sources)
        largest, limit = max(ranks.values()), self._target.max_rank
        if largest > limit:
            raise InvalidArgument(
                "fusion",
                f"the ranks of these adapters add up to {largest}; this engine takes {limit}",
            )
        modules: dict[str, Module] = {}
        for source, _ in sources:
            for path, module in source.modules.items():
                modules.setdefault(path, module)
        shapes = {path: (m.a.shape[1], m.b.shape[0]) for path, m in modules.items()}
        return Plan(sources, modules, ranks, shapes)

    def folder(self, digest: str) -> Path:
        """Where the mixture ``digest`` lies, or would."""
        # vLLM takes a relative path for the name of a repository on the Hub.
        return (self._root / digest).absolute()

    def write(self, plan: Plan, digest: str) -> Path:
        """Writes it to the folder ``digest``; one that is there is replaced. One module at a time
        is in memory.

        Not synchronised to the disk: the next start of the server removes it.

        Raises:
            InvalidArgument: its weights make values that half precision cannot hold.
            OSError: it cannot be read or written.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=staging.TEMPORARY, dir=self._root))
        try:
            (temporary / CONFIG_FILE).write_bytes(plan.config())
            # Made whole in the page cache by one thread; a large buffer saves it small writes.
            with open(temporary / WEIGHTS_FILE, "xb", buffering=1 << 20) as file:
                _write(file, plan)
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                (temporary / name).chmod(0o444)
            temporary.chmod(0o555)
            final = self.folder(digest)
            if final.exists():
                # What an earlier server, or an earlier life of this mixture, has left.
                staging.discard(final)
            os.rename(temporary, final)
            return final
        finally:
            if temporary.exists():
                staging.discard(temporary)


def _write(file: BinaryIO, plan: Plan) -> None:
    """The safetensors file of ``plan`` (format: github.com/huggingface/safetensors)."""
    header = json.dumps(dict(_entries(plan)), separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(source.weights, "rb")) for source, _ in plan.parts]
        for path in plan.ranks:
            factors = [
                (source.factors(opened, path), weight)
                for (source, weight), opened in zip(plan.parts, files, strict=True)
                if path in source.modules
            ]
            a, b = concat.fuse(factors)
            if max(b.max(), -b.min()) > MAX_MAGNITUDE:
                raise InvalidArgument(
                    "fusion", "these weights are too large for what the adapters hold"
                )
            file.write(a.data)
            file.write(b.data)


def _entries(plan: Plan) -> Iterator[tuple[str, dict[str, object]]]:
    """The header: names as the parts have them, A and B of each module in turn."""
    begin = 0
    for path, rank in plan.ranks.items():
        module, (inside, outside) = plan.modules[path], plan.shapes[path]
        for name, shape in ((module.a.name, [rank, inside]), (module.b.name, [outside, rank])):
            end = begin + _SIZE * shape[0] * shape[1]
            yield name, {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
            begin = end
