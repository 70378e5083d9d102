"""Every fault by name. A fault is a context: it is injected at the start and undone at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from loadtests.faults.filled import disk_full, shm_full
from loadtests.faults.house import ENGINE, TRITON, House
from loadtests.faults.kill import kill
from loadtests.faults.spoiled import key_rotated, policy_broken, root_gone

#: Injects itself into a server and says what it hit.
#:
#: Raises:
#:     NotHere: it cannot be injected here; nothing has been changed.
Kind = Callable[[House], AbstractContextManager[str]]

#: Models with a process of their own.
STUBS = ("adapter_fusion", "lora_admin", "lora_gate", "lora_infer", "lora_stream", "vllm_lora")

KINDS: dict[str, Kind] = {
    "kill_engine": kill(ENGINE),
    "kill_tritonserver": kill(TRITON),
    **{f"kill_{stub}": kill(stub) for stub in STUBS},
    "disk_full": disk_full,
    "shm_full": shm_full,
    "root_gone": root_gone,
    "key_rotated": key_rotated,
    "policy_broken": policy_broken,
}
#: They need ``room``: without one, what they would fill is the machine's.
NEED_ROOM = ("disk_full", "shm_full")
