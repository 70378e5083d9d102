"""tools admin against a server that answers what the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tools.admin import show
from tools.admin.command import app

Answer = tuple[int, Any]


class Server:
    """Answers in turn; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        house = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                command, credential = (tensor["data"][0] for tensor in body["inputs"])
                house.asked.append(json.loads(command))
                house.keys.append(credential)
                status, answer = house.answers.pop(0)
                if status == 200:
                    answer = {"outputs": [{"name": "result", "data": [json.dumps(answer)]}]}
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def run(self, *words: str, answers: list[Answer], **options: Any) -> Result:
        self.answers = answers
        url = f"http://127.0.0.1:{self.http.server_port}"
        env = {"LORA_ADMIN_KEY": "the-key"}
        return CliRunner().invoke(app, [*words, "--url", url], env=env, **options)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def row(**fields: Any) -> dict[str, Any]:
    return {
        "lora_id": "fin_risk_v1",
        "state": "ready",
        "digest": "d" * 64,
        "department": "fin",
        "rank": 8,
        "size_bytes": 3 << 20,
        "tiers": ["slot", "host", "disk"],
        "uses": 3,
        "last_use_s_ago": 130.0,
        "pinned": True,
        "reason": "",
        "leaving": [],
        **fields,
    }


def test_list(server: Server) -> None:
    rows = [row(), row(lora_id="fin_bad_v1", state="failed", reason="truncated: [red]'x'[/red]")]
    done = server.run("list", answers=[(200, {"adapters": rows})])
    assert done.exit_code == 0, done.output
    for text in ("fin_risk_v1", "ready", "dddddddddddd ", "3.0", "2 min", "pinned", "[red]'x'"):
        assert text in done.output, text
    assert (server.asked, server.keys) == ([{"op": "list"}], ["the-key"])
    done = server.run("list", "--json", answers=[(200, {"adapters": rows})])
    assert json.loads(done.output)["adapters"] == rows


def test_a_job_is_cancelled(server: Server) -> None:
    for cancelled, text in ((True, "cancelled\n"), (False, "too late: see job\n")):
        done = server.run("cancel-job", "j1", answers=[(200, {"cancelled": cancelled})])
        assert (done.exit_code, done.output) == (0, text)
    assert server.asked == [{"op": "job_cancel", "job": "j1"}] * 2


def test_a_root_that_is_not_well_is_told(server: Server) -> None:
    answer = {"adapters": [], "root_problem": "the adapter root cannot be listed."}
    done = server.run("list", answers=[(200, answer)])
    assert done.output.endswith("the adapter root cannot be listed.\n")


def test_a_job_is_followed(server: Server) -> None:
    running = {"job": "j1", "state": "running", "step": "copying", "result": "", "error": ""}
    ended = {**running, "state": "done", "step": "", "result": "added"}
    start = {"job": "j1", "state": "running"}
    answers = [(200, start), (200, running), (200, ended)]
    done = server.run("add", "fin_risk_v1", "/srv/x", answers=answers)
    assert (done.exit_code, done.output) == (0, "added\n")
    assert server.asked == [
        {"op": "add", "lora_id": "fin_risk_v1", "source": "/srv/x"},
        {"op": "job", "job": "j1"},
        {"op": "job", "job": "j1"},
    ]
    done = server.run("add", "fin_risk_v1", "--no-wait", answers=[(200, start)])
    assert (done.exit_code, done.output) == (0, "job j1\n")
    failed = {**running, "state": "failed", "error": "adapter_failed: truncated: cut off."}
    done = server.run("update", "fin_risk_v1", "/x", answers=[(200, start), (200, failed)])
    assert (done.exit_code, done.output) == (1, "error: adapter_failed: truncated: cut off.\n")


@pytest.mark.parametrize("op", ["remove", "disable", "enable", "pin", "unpin", "warm"])
def test_commands_about_one_adapter(server: Server, op: str) -> None:
    done = server.run(op, "fin_risk_v1", answers=[(200, {"status": "as asked", "changed": True})])
    assert (done.exit_code, done.output) == (0, "as asked\n")
    assert server.asked == [{"op": op, "lora_id": "fin_risk_v1"}]


def test_aliases(server: Server) -> None:
    words = ("alias", "set", "fin_risk", "fin_risk_v2", "--canary", "fin_risk_v3", "--share", "0.1")
    done = server.run(*words, answers=[(200, {"status": "set", "changed": True})])
    assert (done.exit_code, done.output) == (0, "set\n")
    assert server.asked[0] == {
        "op": "alias_set",
        "alias": "fin_risk",
        "to": "fin_risk_v2",
        "canary": "fin_risk_v3",
        "share": 0.1,
    }
    listed = {
        "alias": "fin_risk",
        "to": "fin_risk_v2",
        "canary": "fin_risk_v3",
        "share": 0.1,
        "set_by": "operator",
        "can_roll_back": True,
    }
    done = server.run("alias", "list", answers=[(200, {"aliases": [listed]})])
    assert done.output == "fin_risk → fin_risk_v2, 10% to fin_risk_v3 (operator)\n"


def test_breakers(server: Server) -> None:
    rows = [
        {"breaker": "routing/fin_risk_v1@d", "state": "open", "opened": 2, "retry_after_s": 4.2},
        {"breaker": "fragmentation/shm", "state": "closed", "opened": 0, "retry_after_s": None},
    ]
    done = server.run("breakers", answers=[(200, {"breakers": rows})])
    assert done.exit_code == 0, done.output
    assert [line.split() for line in done.output.splitlines()[1:]] == [
        ["routing/fin_risk_v1@d", "open", "2", "4"],
        ["fragmentation/shm", "closed", "0", "–"],
    ]
    for changed, text in ((True, "reset\n"), (False, "was closed already\n")):
        answer = (200, {"status": "reset", "changed": changed})
        done = server.run("breakers", "--reset", "routing/fin_risk_v1", answers=[answer])
        assert (done.exit_code, done.output) == (0, text)
    assert server.asked[-1] == {"op": "breaker_reset", "breaker": "routing/fin_risk_v1"}


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        ((400, {"error": "unauthenticated: a valid API key is needed."}), 1, "unauthenticated: a "),
        ((404, {"error": "Request for unknown model: 'lora_admin' is not found"}), 1, "unknown"),
        ((503, "not a mapping"), 1, "HTTP 503"),
        ((201, {"outputs": []}), 2, "not the answer of a lora_admin"),
    ],
)
def test_what_goes_wrong(server: Server, answer: Answer, code: int, text: str) -> None:
    done = server.run("list", answers=[answer])
    assert done.exit_code == code and text in done.output.replace("\n", ""), done.output


def test_no_server_and_no_key(tmp_path: Path) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["list", *words], env={"LORA_ADMIN_KEY": ""})

    assert "LORA_ADMIN_KEY" in run().output
    key = tmp_path / "key"
    for text, problem in (("", "is empty"), ("{}", "without a key 'admin'")):
        key.write_text(text)
        done = run("--key-file", str(key))
        assert done.exit_code == 2 and problem in done.output.replace("\n", " ")
    key.write_text('{"admin": "x"}')
    done = run("--key-file", str(key), "--url", "http://127.0.0.1:1")
    assert done.exit_code == 2 and "is the server up" in done.output.replace("\n", " ")
    done = run("--key-file", str(key), "--url", "ftp://x")
    assert done.exit_code == 2 and "http://" in done.output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (180_000, "2 d")],
)
def test_ago(seconds: float | None, text: str) -> None:
    assert show.ago(seconds) == text
