"""vLLM's processes end with the process that started the engine.

vLLM's workers watch their EngineCore, but nothing watches for the front end: killed without a
chance to clean up, it would leave an engine that holds its memory and answers nobody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from python_backend import runtime

_VARIABLE = "LORA_ENGINE_OWNER"
_POLL_S = 0.5


def claim() -> None:
    """Makes this process the owner of the engine processes it will start."""
    pid = os.getpid()
    os.environ[_VARIABLE] = f"{pid}:{runtime.process_start(pid)}"


def end_with_owner() -> None:
    """In a worker: ends this process, and the EngineCore above it, once the owner has gone."""
    owner = os.environ.get(_VARIABLE)
    if not owner or any(thread.name == _VARIABLE for thread in threading.enumerate()):
        return
    text, _, start = owner.partition(":")
    pid, parent = int(text), os.getppid()

    def watch() -> None:
        while runtime.process_start(pid) == start:
            time.sleep(_POLL_S)
        if parent not in (pid, 1) and os.getppid() == parent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name=_VARIABLE, daemon=True).start()
