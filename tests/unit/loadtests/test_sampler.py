"""What is kept of a look at the server."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

from loadtests.sampler import KEPT, kept, sample, shm_bytes
from tests.server.harness import free_ports
from tools.serving.shm import SHM
from tools.top.reading import Page

ROOT = Path(__file__).resolve().parents[3]
PAGE = """\
# HELP lora_breaker_state 0 closed
lora_breaker_state{model="vllm_lora",signal="routing",version="1"} 2
lora_switch_rate{model="vllm_lora",version="1"} 0.5
lora_load_duration_seconds_count{model="vllm_lora",version="1"} 7
vllm:num_requests_running{model="vllm_lora",version="1"} 3
"""


def test_chosen_metrics_without_tritons_own_labels() -> None:
    assert kept(Page.parse(PAGE, 0.0)) == {
        'lora_breaker_state{signal="routing"}': 2.0,
        "lora_switch_rate": 0.5,
    }


def test_every_chosen_metric_exists() -> None:
    code = "".join(
        path.read_text("utf-8")
        for folder in ("python_backend", "ensemble")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert [name for name in sorted(KEPT) if f'"{name}"' not in code] == []


def test_a_server_that_is_down_is_sampled() -> None:
    found = sample(3.25, f"127.0.0.1:{free_ports()[0]}", pid=2**22 + 1)
    assert (found.t, found.metrics, found.series) == (3.25, None, 0)
    assert found.rss == found.fds == found.threads == {}
    assert found.shm == 0


def test_shared_memory_is_what_is_mapped() -> None:
    before = shm_bytes([os.getpid()])
    with tempfile.NamedTemporaryFile(dir=SHM) as file:
        file.write(b"x" * 3 * mmap.PAGESIZE)
        file.flush()
        assert shm_bytes([os.getpid()]) == before
        with mmap.mmap(file.fileno(), 0):
            assert shm_bytes([os.getpid()]) == before + 3 * mmap.PAGESIZE


def test_a_server_elsewhere_has_no_processes() -> None:
    assert sample(0.0, f"127.0.0.1:{free_ports()[0]}", pid=None).rss == {}


def test_only_what_is_below_is_counted() -> None:
    found = sample(0.0, f"127.0.0.1:{free_ports()[0]}", pid=os.getpid())
    assert "pytest" not in found.rss
