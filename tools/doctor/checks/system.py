"""The operating system's bounds: shared memory, files, threads, ports, the disk."""

from __future__ import annotations

from collections.abc import Iterator

from python_backend import memory_plan
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, ok, size, warning
from tools.serving.arguments import BLS_THREADS, SHM_BYTES

#: Models of ``model_repository`` that run in Python, one instance each, and those of them that
#: call others (each with ``BLS_THREADS``).
PYTHON_MODELS, DOORS = 6, 4
#: Bytes of disk below which a start cannot write its keys, snapshots and logs.
_LEAST_DISK = 16 << 20
#: Libraries, sockets between processes, audit and weight files.
_OTHER_FILES = 1024
_OTHER_THREADS = 512


def shm(facts: Facts) -> Iterator[Finding]:
    """Shared memory: Docker's 64 MB are too few."""
    there, free = facts.machine.shm_bytes, facts.machine.shm_free_bytes
    if there is None or free is None:
        yield failure("shm", "there is no /dev/shm", "mount one: docker run --shm-size 1g")
        return
    tier = facts.settings.tiers.shm_bytes if facts.settings else 0
    need = memory_plan.shm_bytes(tier)
    text = f"{size(free)} of {size(there)} in /dev/shm are free, {size(need)} are planned for"
    cure = f"docker run --shm-size {need}, in Kubernetes an emptyDir of memory of that size"
    # What lies there may be a killed server's, and goes at the next start: the size decides.
    if there < tier + PYTHON_MODELS * SHM_BYTES:
        yield failure("shm", text, cure)
    elif there < need:
        yield warning("shm", text, cure)
    else:
        yield ok("shm", text)


def ulimits(facts: Facts) -> Iterator[Finding]:
    """Open files for as many callers as may wait, threads for the doors, memory for RDMA."""
    machine = facts.machine
    callers = facts.settings.limits.max_pending if facts.settings else 2048
    files, threads = callers + _OTHER_FILES, DOORS * BLS_THREADS + _OTHER_THREADS
    fine = True
    if machine.open_files is not None and machine.open_files < files:
        fine = False
        yield warning(
            "ulimits",
            f"{machine.open_files} open files: too few for {callers} callers (limits.max_pending)",
            f"ulimit -n {files}, or LimitNOFILE, or docker run --ulimit nofile={files}",
        )
    if machine.threads is not None and machine.threads < threads:
        fine = False
        yield warning(
            "ulimits",
            f"{machine.threads} threads: fewer than the {threads} the doors and torch may want",
            f"raise ulimit -u or the container's limit of pids to {threads}",
        )
    if machine.rdma and facts.workers > 1 and machine.locked_bytes is not None:
        fine = False
        yield warning(
            "ulimits",
            f"{size(machine.locked_bytes)} may be locked: NCCL needs more over InfiniBand",
            "ulimit -l unlimited",
        )
    if fine:
        yield ok("ulimits", f"open files {machine.open_files or 'unlimited'}")


def ports(facts: Facts) -> Iterator[Finding]:
    """Whether the ports are free."""
    if facts.machine.ports_problem:
        reason, _, cure = facts.machine.ports_problem.partition("; ")
        yield failure("ports", reason, cure or "choose others")
    else:
        yield ok("ports", "free")


def state(facts: Facts) -> Iterator[Finding]:
    """The state directory: what operators decided, room for copies of adapters and the audit."""
    settings, machine = facts.settings, facts.machine
    if settings is None:
        return
    if machine.state_problem:
        yield failure(
            "state",
            f"{settings.state_dir}: {machine.state_problem}",
            "name a folder that the server may write (state_dir, LORA_STATE_DIR)",
        )
        return
    if facts.decisions_problem:
        reason, _, cure = facts.decisions_problem.rpartition("; ")
        yield failure("state", reason, cure)
    # Two models write audit files; copies that lie there already are taken up.
    copies = sum(folder.size_bytes for folder in facts.adapters.folders)
    need = max(0, copies - machine.staged_bytes)
    need += 2 * settings.audit.max_bytes if settings.audit.enabled else 0
    free = machine.state_free_bytes
    text = f"{size(free or 0)} free under state_dir, {size(need)} are needed for copies and audit"
    if free is not None and free < _LEAST_DISK:
        yield failure("state", text, "make room: keys and snapshots cannot be written")
    elif free is not None and free < need:
        yield warning("state", text, "make room, or give it another disk")
    elif free is not None and free < need + copies:
        yield advice("state", text, "make room: an update needs a second copy")
    else:
        yield ok("state", text)
