"""The commands that pods run before the server, run for real."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from python_backend.adapters import signing_keys
from tests.deploy.kustomize import ROOT, pod
from tools.__main__ import app


def command(overlay: str, name: str) -> list[str]:
    (found,) = (one for one in pod(overlay)["initContainers"] if one["name"] == name)
    words: list[str] = found["command"]
    return words


def mount_secret(folder: Path, files: dict[str, str]) -> None:
    """A secret as the kubelet mounts it: links to a folder that is swapped as a whole."""
    data = folder / "..2026"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, text in files.items():
        (data / name).write_text(text)
        (data / name).chmod(0o440)
        (folder / name).symlink_to(f"..data/{name}")


def copied(tmp_path: Path, files: dict[str, str]) -> dict[str, Path]:
    """What the init container makes of a secret."""
    mount_secret(tmp_path / "secret", files)
    (tmp_path / "keys").mkdir()
    assert copy_keys(tmp_path) == 0
    return {path.name: path for path in (tmp_path / "keys").iterdir()}


def test_keys_are_what_the_server_takes(tmp_path: Path) -> None:
    made = tmp_path / "made.yaml"
    words = ["signing-keys", "new", f"--keys={made}", "--key-id=fin-2026", "--for=fin_*"]
    assert CliRunner().invoke(app, words).exit_code == 0
    files = {"signing.yaml": made.read_text(), "jwt.pem": "key"}
    found = copied(tmp_path, files)
    assert {name: path.read_text() for name, path in found.items()} == files
    assert {stat.S_IMODE(path.lstat().st_mode) for path in found.values()} == {0o400}
    assert signing_keys.load(found["signing.yaml"]) == signing_keys.load(made)
    # As it is mounted, the server refuses it.
    with pytest.raises(signing_keys.SigningKeysError):
        signing_keys.load(tmp_path / "secret" / "signing.yaml")
    # And an init container may be started anew.
    assert copy_keys(tmp_path) == 0


def copy_keys(tmp_path: Path) -> int:
    """The exit code of the init container."""
    *shell, script = command("plain", "keys")
    script = script.replace("/run/secrets/lora", str(tmp_path / "secret"))
    script = script.replace("/run/lora-keys", str(tmp_path / "keys"))
    return subprocess.run([*shell, script], check=False).returncode


def test_no_keys_are_no_fault(tmp_path: Path) -> None:
    assert copied(tmp_path, {}) == {}


@pytest.fixture
def store() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_adapters_come_from_the_store(store: str, tmp_path: Path) -> None:
    secrets = {
        "AWS_ACCESS_KEY_ID": "an-access-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": store,
    }
    client = boto3.client(
        "s3",
        endpoint_url=store,
        region_name="us-east-1",
        aws_access_key_id="an-access-key",
        aws_secret_access_key="a-secret-key",
    )
    client.create_bucket(Bucket="lora-adapters")
    files = {
        f"{name}/{file}": f"{name} {file}".encode()
        for name in ("fin_risk_v1", "fin_risk_v2")
        for file in ("adapter_config.json", "adapter_model.safetensors")
    }
    for path, content in files.items():
        client.put_object(Bucket="lora-adapters", Key=f"finance/{path}", Body=content)
    client.put_object(Bucket="lora-adapters", Key="service/svc_chat_v1/other", Body=b"not ours")
    python, *words = command("finance", "adapters")
    assert python == "python3"
    target = tmp_path / "adapters"
    target.mkdir()
    subprocess.run(
        [sys.executable, *words],
        env={
            **os.environ,
            **secrets,
            "ADAPTERS_FROM": "s3://lora-adapters/finance",
            "ADAPTERS_TO": str(target),
        },
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert found == files
