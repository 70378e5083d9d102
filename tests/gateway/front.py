"""A real nginx with a rendered configuration, in front of whatever listens."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from tests import debian
from tests.server import harness
from tests.server.client import Client
from tools.__main__ import app


class Front:
    """A running gateway."""

    def __init__(self, folder: Path, ports: tuple[int, int], trusted: Path | None) -> None:
        self.folder, self.ports, self._trusted = folder, ports, trusted

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def client(self, key: str = "") -> Client:
        return Client(self.http, f"127.0.0.1:{self.ports[1]}", key, self._trusted)

    def log(self) -> list[dict[str, Any]]:
        """What the access log says of each call that has ended."""
        text = (self.folder / "access.log").read_text()
        return [json.loads(line) for line in text.splitlines()]


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for this machine's loopback, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "gateway.pem", folder / "gateway.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def write(folder: Path, groups: dict[str, Any], *, tls: bool = False, **gateway: Any) -> Path:
    """A fleet.yaml for this machine in ``folder``."""
    pair = certificate(folder) if tls else None
    http, grpc, _ = harness.free_ports()
    settings = {
        "server_name": "localhost",
        "address": "127.0.0.1",
        "http_port": http,
        "grpc_port": grpc,
        "tls": {"certificate": str(pair[0]), "key": str(pair[1])} if pair else None,
        "folders": dict.fromkeys(("run", "log", "temp"), str(folder)),
        **gateway,
    }
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({"groups": groups, "gateway": settings}, sort_keys=False))
    return path


def rendered(fleet: Path) -> Path:
    """The configuration as the command writes it."""
    out = fleet.with_name("nginx.conf")
    done = CliRunner().invoke(app, ["render", "nginx", "--fleet", str(fleet), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


@contextlib.contextmanager
def running(
    folder: Path, groups: dict[str, Any], *, tls: bool = False, **gateway: Any
) -> Iterator[Front]:
    """nginx with this fleet, from when it takes connections until it has stopped."""
    nginx = debian.program("nginx", "nginx")
    folder.mkdir()
    fleet = write(folder, groups, tls=tls, **gateway)
    command = [str(nginx), "-p", str(folder), "-c", str(rendered(fleet)), "-g", "daemon off;"]
    settings = yaml.safe_load(fleet.read_text())["gateway"]
    ports = settings["http_port"], settings["grpc_port"]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 10
        while not all(_takes_connections(port) for port in ports):
            said = (folder / "output").read_text()
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.02)
        yield Front(folder, ports, folder / "gateway.pem" if tls else None)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _takes_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
