"""What the image starts, and its compose file: everything but Docker itself."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import schemas
from tests.deploy.kustomize import tool

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "image" / "entrypoint.sh"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text("utf-8"))
#: Stands for the image's Python: writes down what it is asked, and what its process is.
PYTHON = """#!/bin/sh
echo "$$ $*" >> "$CALLS"
case "$3" in
doctor) if [ "$DOCTOR" = slow ]; then exec sleep 60; fi; exit "$DOCTOR" ;;
esac
"""


class Start:
    """The entry point, started with a Python of ours.

    Args:
        doctor: what `tools doctor` ends with, or ``slow``.
    """

    def __init__(self, folder: Path, doctor: str, *arguments: str, **environment: str) -> None:
        self._calls = folder / "calls"
        python = folder / "python3"
        python.write_text(PYTHON)
        python.chmod(0o755)
        path = f"{folder}:/usr/bin:/bin"
        given = {"PATH": path, "CALLS": str(self._calls), "DOCTOR": doctor, **environment}
        self.process = subprocess.Popen(["/bin/sh", str(SCRIPT), *arguments], env=given)

    def calls(self) -> list[tuple[int, list[str]]]:
        """Process id and words of each call so far."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [(int(line.split()[0]), line.split()[1:]) for line in lines]


def test_the_checks_come_first_and_the_server_takes_the_process(tmp_path: Path) -> None:
    start = Start(tmp_path, "0", "--verbose")
    assert start.process.wait(30) == 0
    (_, doctor), (pid, serve) = start.calls()
    config = "/etc/lora-serving/serving.yaml"
    state = "/var/lib/lora-serving/state"
    wanted = ["-m", "tools", "doctor", "--config", config, "--state-dir", state]
    assert doctor == [*wanted, "--skip", "ports"]
    assert pid == start.process.pid
    wanted = ["-m", "tools", "serve", "--exec", "--host", "0.0.0.0"]
    assert serve == [*wanted, "--config", config, "--state-dir", state, "--verbose"]


@pytest.mark.parametrize("code", [1, 2])
def test_what_the_checks_find_fatal_stops_the_start(tmp_path: Path, code: int) -> None:
    start = Start(tmp_path, str(code))
    assert start.process.wait(30) == code
    assert [words[2] for _, words in start.calls()] == ["doctor"]


def test_the_checks_can_be_left_out_and_places_be_named(tmp_path: Path) -> None:
    places = {"LORA_SERVING_CONFIG": "/a.yaml", "LORA_STATE_DIR": "/b"}
    start = Start(tmp_path, "1", LORA_DOCTOR="off", **places)
    assert start.process.wait(30) == 0
    ((_, words),) = start.calls()
    assert words[-4:] == ["--config", "/a.yaml", "--state-dir", "/b"]


def test_a_stop_during_the_checks_is_heard(tmp_path: Path) -> None:
    start = Start(tmp_path, "slow")
    until = time.monotonic() + 30
    while not start.calls():
        assert time.monotonic() < until
        time.sleep(0.02)
    start.process.send_signal(signal.SIGTERM)
    assert start.process.wait(30) == 128 + signal.SIGTERM
    ((doctor, _),) = start.calls()
    while Path(f"/proc/{doctor}").exists():
        assert time.monotonic() < until, "the checks go on"
        time.sleep(0.02)


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [tool("hadolint"), "--no-color", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_script_is_posix_shell() -> None:
    assert SCRIPT.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["/bin/sh", "-n", str(SCRIPT)], check=True)


def test_compose_fits_its_specification() -> None:
    assert schemas.compose_problems(COMPOSE) == []


def test_compose_mounts_what_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / "deploy" / source).exists(), volume
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"]


def test_compose_publishes_on_loopback_alone_and_not_the_metrics() -> None:
    published = [
        port for service in COMPOSE["services"].values() for port in service.get("ports", [])
    ]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert not any(port.endswith(":8002") for port in published)


def test_prometheus_and_grafana_find_what_their_files_name() -> None:
    """Both share the server's loopback, which is what the files speak of."""
    others = ("prometheus", "grafana")
    assert {COMPOSE["services"][name]["network_mode"] for name in others} == {"service:server"}
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    targets = [
        t for job in scrape["scrape_configs"] for c in job["static_configs"] for t in c["targets"]
    ]
    source = (ROOT / "deploy" / "grafana" / "provisioning" / "datasources.yml").read_text()
    named = [*targets, *re.findall(r"url: http://(\S+)", source)]
    assert named == ["127.0.0.1:8002", "127.0.0.1:9090"]


def test_compose_gives_the_server_what_the_image_expects() -> None:
    server = COMPOSE["services"]["server"]
    mounted = {
        volume.split(":")[-2 if volume.endswith(":ro") else -1] for volume in server["volumes"]
    }
    assert mounted == {"/etc/lora-serving", "/var/lib/lora-serving"}
    assert server["read_only"] is True and server["tmpfs"] == ["/tmp"]
