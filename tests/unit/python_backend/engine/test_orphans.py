"""What the engine's owner leaves behind ends by itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from python_backend import runtime

ROOT = Path(__file__).resolve().parents[4]
WORKER = """
import sys, time
from python_backend.engine import orphans
orphans.end_with_owner()
orphans.end_with_owner()
print("up", __import__("os").getpid(), flush=True)
time.sleep(60)
"""
#: Owner, EngineCore, worker: as with tensor parallelism. Or without the one in the middle.
CORE = f"""
import subprocess, sys, os
print("core", os.getpid(), flush=True)
subprocess.run([sys.executable, "-c", {WORKER!r}])
"""


def owner(child: str) -> str:
    return f"""
import subprocess, sys
from python_backend.engine import orphans
orphans.claim()
subprocess.run([sys.executable, "-c", {child!r}])
"""


def ends(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if all(runtime.process_start(pid) is None for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_the_worker_and_the_core_above_it_end_with_the_owner() -> None:
    for child, lines in ((WORKER, 1), (CORE, 2)):
        process = subprocess.Popen(
            [sys.executable, "-c", owner(child)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        pids = [int(process.stdout.readline().split()[1]) for _ in range(lines)]
        time.sleep(0.7)
        assert all(runtime.process_start(pid) is not None for pid in pids)
        process.kill()
        process.wait()
        assert ends(pids)


def test_without_an_owner_nothing_is_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from python_backend.engine import orphans as o; o.end_with_owner();"
         " import threading; print(threading.active_count())"],
        capture_output=True, text=True, cwd=ROOT, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.strip() == "1"
