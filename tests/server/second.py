"""A server of its own where a parameter must differ: another model repository, explicit mode."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.server import harness
from tests.server.harness import ROOT, START_LIMIT_S, Server
from tools import tritonserver
from tools.serving.arguments import Ports, server_arguments
from tools.serving.process import ServerProcess, session_members
from tools.serving.state import StateDirectory


def copy_repository(target: Path) -> Path:
    """The project's model repository, to be changed; the folder of ``vllm_lora``'s version."""
    shutil.copytree(ROOT / "model_repository", target, ignore=shutil.ignore_patterns("__pycache__"))
    # Git keeps no empty folder, and Triton wants one for the ensemble's version.
    (target / "lora_generate" / "1").mkdir(exist_ok=True)
    return target / "vllm_lora" / "1"


def set_parameter(config: Path, name: str, value: str) -> None:
    """Changes the value of one of the parameters that the file sets."""
    found = text_format.Parse(config.read_text("utf-8"), model_config_pb2.ModelConfig())
    assert name in found.parameters
    found.parameters[name].string_value = value
    config.write_text(text_format.MessageToString(found), "utf-8")


@contextlib.contextmanager
def running(
    demo: Path, state_path: Path, models: Path, *more: str
) -> Iterator[tuple[Server, Callable[[], list[int]]]]:
    """A server by its own command line with ``more`` behind; also what lists its processes."""
    with started(demo, state_path, models, *more) as (server, process):
        wait_until_ready(server, process)
        yield server, lambda: session_members(process.pid)


@contextlib.contextmanager
def started(
    demo: Path, state_path: Path, models: Path, *more: str
) -> Iterator[tuple[Server, ServerProcess]]:
    """As ``running``, not ready yet: several can start side by side."""
    state = StateDirectory(state_path)
    ports, prefix = harness.free_ports(), state.new_shm_prefix()
    arguments = server_arguments(
        models=models,
        host="127.0.0.1",
        ports=Ports(*ports),
        admin_key=state.new_admin_key(),
        shm_prefix=prefix,
        verbose=False,
    )
    environment = {
        "LORA_SERVING_CONFIG": str(demo / "serving.yaml"),
        "LORA_STATE_DIR": str(state.path),
    }
    process = ServerProcess(
        tritonserver.locate(extra_env=environment), [*arguments, *more], state.log, prefix
    )
    try:
        server = Server(demo, state_path, ports)
        yield server, process
        server.client.close()
    finally:
        process.stop()


def wait_until_ready(server: Server, process: ServerProcess) -> None:
    """Returns when all its models are ready; fails with the end of its log when it is not."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.exit_code() is None:
        with contextlib.suppress(httpx.HTTPError):
            if server.client.http.get("/v2/health/ready").status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"not ready (exit code {process.exit_code()}):\n{server.tail()}")
