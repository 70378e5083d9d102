"""Everything the checks go by, gathered beforehand. No check looks at the machine itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from python_backend.memory_plan import Model
from python_backend.nvml import Device, Inventory
from python_backend.settings import Settings
from tools.policy.check import Remark


@dataclasses.dataclass(frozen=True)
class Link:
    """A network interface that is up; ``mbit_s`` is None where it does not tell its speed."""

    name: str
    mbit_s: int | None


@dataclasses.dataclass(frozen=True)
class Machine:
    """The operating system's bounds, in bytes and counts; None: not told, or no bound."""

    cores: int = 1
    memory_bytes: int | None = None
    #: What of it is not taken.
    memory_free_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    open_files: int | None = None
    threads: int | None = None
    locked_bytes: int | None = None
    links: tuple[Link, ...] = ()
    #: InfiniBand or RoCE devices.
    rdma: tuple[str, ...] = ()
    #: Why the ports cannot be used, with the cure; empty: they are free.
    ports_problem: str = ""
    #: Why the state directory cannot be written; empty: it can.
    state_problem: str = ""
    state_free_bytes: int | None = None
    #: Copies of adapters that an earlier start has left there.
    staged_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Versions:
    """What is installed; empty or None where it is not."""

    python: tuple[int, int]
    vllm: str = ""
    #: vLLM was built for a CPU.
    vllm_cpu: bool = False
    torch: str = ""
    #: The CUDA version torch was built for.
    torch_cuda: tuple[int, int] | None = None
    nccl: str = ""
    numpy: str = ""
    #: Triton's release, such as 24.10; empty where it cannot be told.
    triton: str = ""
    #: Why there is no tritonserver, with the cure.
    triton_problem: str = ""
    #: It is the one that set-up assembled.
    triton_assembled: bool = False


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The base model's folder."""

    #: As the settings name it.
    name: str = ""
    is_folder: bool = False
    #: config.json; None where it cannot be read.
    config: Mapping[str, Any] | None = None
    config_problem: str = ""
    #: Weight files in safetensors, bytes by name.
    weights: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: Named by the index, and not there.
    missing: tuple[str, ...] = ()
    #: Files that this user may not read.
    unreadable: tuple[str, ...] = ()
    #: Files that only point to where the real ones lie (git-lfs).
    pointers: tuple[str, ...] = ()
    #: Weight files in other formats.
    other_weights: tuple[str, ...] = ()
    tokenizer: bool = False
    chat_template: bool = False
    shape: Model | None = None
    #: Why there is no shape to plan by.
    shape_problem: str = ""


@dataclasses.dataclass(frozen=True)
class AdapterFolder:
    """One adapter of the root; ``problem`` is why it would be refused."""

    lora_id: str
    rank: int | None = None
    size_bytes: int = 0
    problem: str = ""
    #: Its signature is good (None: none, or not looked at).
    signed: bool | None = None
    signature_problem: str = ""


@dataclasses.dataclass(frozen=True)
class AdapterRoot:
    """The folder of adapters."""

    #: Why it cannot be read; empty: it can.
    problem: str = ""
    writable_by_all: bool = False
    #: The file system is another machine's.
    remote: str = ""
    folders: tuple[AdapterFolder, ...] = ()
    #: Folders that no adapter can be named by.
    strangers: tuple[str, ...] = ()
    #: Adapters that a multi_lora.json names.
    listed: tuple[str, ...] = ()
    #: Why the signing keys cannot be used.
    keys_problem: str = ""
    #: Signatures that were not looked at, so that this stays quick.
    unverified: int = 0

    @property
    def known(self) -> frozenset[str]:
        """Every lora_id that there is."""
        return frozenset(folder.lora_id for folder in self.folders) | frozenset(self.listed)


@dataclasses.dataclass(frozen=True)
class Facts:
    """All of it."""

    #: None where they cannot be used; then ``settings_problem`` says why.
    settings: Settings | None
    settings_problem: str = ""
    #: The engine's arguments as they would be given to vLLM: ``model.json`` and settings.
    engine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    engine_problem: str = ""
    #: The arguments this vLLM knows; None where it cannot be told.
    engine_names: frozenset[str] | None = None
    #: Only the GPUs that CUDA_VISIBLE_DEVICES leaves.
    gpus: Inventory = dataclasses.field(default_factory=Inventory)
    #: The machine shows an NVIDIA device.
    has_gpu: bool = False
    machine: Machine = Machine()
    versions: Versions = Versions((0, 0))
    model: ModelFiles = ModelFiles()
    adapters: AdapterRoot = AdapterRoot()
    #: Why what operators have decided cannot be read, with the cure behind a semicolon.
    decisions_problem: str = ""
    #: Other files that the settings name and that cannot be used, each with the cure. It serves
    #: without, but not what they are for.
    file_problems: tuple[str, ...] = ()
    policy_problem: str = ""
    policy_remarks: tuple[Remark, ...] = ()
    host: str = "127.0.0.1"

    def number(self, name: str, default: int) -> int:
        """A whole number of the engine's arguments, or ``default`` where it is none."""
        value = self.engine.get(name)
        try:
            return default if value is None else int(value)
        except (TypeError, ValueError, OverflowError):
            return default

    @property
    def tp(self) -> int:
        """tensor_parallel_size."""
        return max(1, self.number("tensor_parallel_size", 1))

    @property
    def workers(self) -> int:
        """Workers of the engine; on GPUs each has one of its own."""
        return self.tp * max(1, self.number("pipeline_parallel_size", 1))

    @property
    def used(self) -> tuple[Device, ...]:
        """The GPUs that the engine's workers get."""
        return self.gpus.devices[: self.workers]

    @property
    def on_gpu(self) -> bool:
        """Whether the engine runs on GPUs: there are some, and vLLM was built for them."""
        return bool(self.gpus.devices) and not self.versions.vllm_cpu

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each adapter whose rank is known."""
        return {f.lora_id: f.rank for f in self.adapters.folders if f.rank is not None}
