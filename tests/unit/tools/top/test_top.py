"""``tools top`` over pages that a test wrote."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tools.__main__ import app
from tools.top.reading import Page, figures
from tools.top.screen import screen

PAGE = """\
# HELP lora_requests_total Requests.
# TYPE lora_requests_total counter
lora_requests_total{department="fin",model="vllm_lora",outcome="ok"} 8
lora_requests_total{department="fin",model="vllm_lora",outcome="internal"} 2
lora_requests_total{department="svc",model="vllm_lora",outcome="ok"} 5
lora_tokens_total{department="fin",kind="out"} 100
lora_tokens_total{department="fin",kind="in"} 7000
lora_queue_depth{department="fin"} 3
lora_requests_in_engine{department="qa"} 4
lora_switch_rate{model="vllm_lora"} 5.5
lora_breaker_state{signal="switch_rate"} 2
lora_breaker_refusals_total{signal="load_latency"} 6
lora_memory_fragmentation_ratio{pool="heap"} 0.9
lora_resident_adapters{tier="slot"} 4
lora_adapters{state="ready"} 11
lora_adapter_requests_total{lora_id="fin_risk_v1"} 10
lora_adapter_requests_total{lora_id="say \\"hi\\"\\n"} 1
lora_gate_decisions_total{decision="refused",reason="not_found"} 2000
lora_policy_error{model="lora_gate"} 1
lora_route_error_ratio NaN
lora_nonsense{ 1
nv_cpu_utilization 0.5
"""


def test_figures_of_one_look() -> None:
    shown = figures(Page.parse(PAGE, 0))
    assert shown["departments"]["fin"] == {
        "waiting": 3,
        "running": 0,
        "requests": 10,
        "not_ok": 2,
        "requests_per_s": None,
        "tokens_per_s": None,
    }
    assert shown["departments"]["qa"]["running"] == 4
    assert shown["signals"]["switch_rate"] == {"value": 5.5, "state": "open", "refused": 0}
    assert shown["signals"]["load_latency"] == {"value": None, "state": None, "refused": 6}
    assert shown["signals"]["routing"]["value"] is None
    assert shown["signals"]["fragmentation"]["value"] is None
    assert shown["busiest"] == {"fin_risk_v1": 10, 'say "hi"\n': 1}
    assert shown["gate"] == {"not_found": 2000}
    assert shown["policy_error"] is True
    json.dumps(shown)


def test_rates_between_two_looks() -> None:
    later = PAGE.replace('kind="out"} 100', 'kind="out"} 150')
    shown = figures(Page.parse(later, 5), Page.parse(PAGE, 0))
    assert shown["departments"]["fin"]["tokens_per_s"] == 10
    assert shown["departments"]["fin"]["requests_per_s"] == 0
    restarted = PAGE.replace('kind="out"} 100', 'kind="out"} 20')
    shown = figures(Page.parse(restarted, 5), Page.parse(PAGE, 0))
    assert shown["departments"]["fin"]["tokens_per_s"] == 4


@pytest.mark.parametrize("text", ["", "not metrics", "lora_adapters", "\x00" * 10])
def test_a_page_without_anything_of_ours_can_be_shown(text: str) -> None:
    console = Console(record=True, width=100)
    console.print(screen(figures(Page.parse(text, 0))))
    assert "switch_rate" in console.export_text()


@pytest.fixture
def address() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_once(address: str) -> None:
    done = CliRunner().invoke(app, ["top", "--once", "--json", "--metrics", address])
    assert done.exit_code == 0
    assert json.loads(done.output)["tiers"] == {"slot": 4}
    done = CliRunner().invoke(app, ["top", "--once", "--metrics", address])
    assert done.exit_code == 0
    assert "open" in done.output


def test_no_server() -> None:
    done = CliRunner().invoke(app, ["top", "--once", "--metrics", "127.0.0.1:9"])
    assert done.exit_code == 1
    assert "is the server up" in done.output
