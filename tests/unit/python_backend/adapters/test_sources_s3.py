"""Adapters from a real S3-compatible server (moto's, on loopback)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer

from python_backend.adapters import source_stores, sources
from python_backend.adapters.source_problem import Problem, SourceFailed
from python_backend.source_settings import SourceSettings
from tests.badadapters import good
from tests.badadapters.files import WEIGHTS_FILE
from tests.badadapters.shard_kinds import shard

KEYS = {"key": "an-access-key", "secret": "a-secret-key"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(url: str) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEYS["key"],
        aws_secret_access_key=KEYS["secret"],
    )
    client.create_bucket(Bucket="models")
    for found in client.list_objects_v2(Bucket="models").get("Contents", ()):
        client.delete_object(Bucket="models", Key=found["Key"])
    return client


@pytest.fixture
def credentials(tmp_path: Path, url: str) -> Path:
    path = tmp_path / "credentials.yaml"
    lines = [f"  {name}: {value}" for name, value in {**KEYS, "endpoint_url": url}.items()]
    path.write_text("s3:\n" + "\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def put(client: Any, folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, content in files.items():
        client.put_object(Bucket="models", Key=f"fin/risk/{name}", Body=content)
    return files


def fetch(
    tmp: Path, credentials: Path, uri: str = "s3://models/fin/risk", **settings: Any
) -> dict[str, bytes]:
    into = tmp / "into"
    into.mkdir(exist_ok=True)
    for path in into.iterdir():
        path.unlink()
    progress = settings.pop("progress", lambda done, size: None)
    settings = {"allow": ("s3://models/fin",), "credentials_file": credentials, **settings}
    sources.fetch(uri, into, SourceSettings(**settings), progress, threading.Event())
    return {path.name: path.read_bytes() for path in into.iterdir()}


def refused(problem: Problem, *arguments: Any, **settings: Any) -> None:
    with pytest.raises(SourceFailed) as caught:
        fetch(*arguments, **settings)
    assert caught.value.problem is problem, caught.value.message
    assert not any(value in caught.value.message for value in KEYS.values())


def test_an_adapter_arrives(
    tmp_path: Path, client: Any, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good().write(tmp_path / "origin")
    files = put(client, tmp_path / "origin")
    client.put_object(Bucket="models", Key="fin/risk/optimizer.pt", Body=b"a pickle")
    assert fetch(tmp_path, credentials) == files
    assert KEYS["secret"] not in caplog.text


def test_parts_arrive(tmp_path: Path, client: Any, credentials: Path) -> None:
    shard(good(), tmp_path / "origin")
    files = put(client, tmp_path / "origin")
    assert fetch(tmp_path, credentials) == files


def test_in_several_ranges(
    tmp_path: Path, client: Any, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_stores, "BLOCK_BYTES", 10_000)
    good().write(tmp_path / "origin")
    files = put(client, tmp_path / "origin")
    steps: list[int] = []
    assert fetch(tmp_path, credentials, progress=lambda done, size: steps.append(done)) == files
    assert len(steps) > 3 and steps == sorted(steps)


def test_changed_between_two_ranges(
    tmp_path: Path, client: Any, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_stores, "BLOCK_BYTES", 10_000)
    good().write(tmp_path / "origin")
    weights = put(client, tmp_path / "origin")[WEIGHTS_FILE]
    changed: list[int] = []

    def change(done: int, size: int | None) -> None:
        if not changed and done > 10_000:
            changed.append(done)
            body = weights[:-1] + b"!"
            client.put_object(Bucket="models", Key=f"fin/risk/{WEIGHTS_FILE}", Body=body)

    refused(Problem.CHANGED, tmp_path, credentials, progress=change)
    assert changed


def test_changed_behind_its_back(tmp_path: Path, client: Any, credentials: Path) -> None:
    good().write(tmp_path / "origin")
    put(client, tmp_path / "origin")

    def change(done: int, size: int | None) -> None:
        if size and size > 10_000:
            client.put_object(Bucket="models", Key="fin/risk/adapter_config.json", Body=b"{}")

    refused(Problem.CHANGED, tmp_path, credentials, progress=change)


def test_what_is_not_there(tmp_path: Path, client: Any, credentials: Path) -> None:
    refused(Problem.NOT_FOUND, tmp_path, credentials, "s3://models/fin/other")
    refused(Problem.NOT_FOUND, tmp_path, credentials, "s3://nobody/x", allow=("s3",))


def test_the_cap_is_exact(tmp_path: Path, client: Any, credentials: Path) -> None:
    good().write(tmp_path / "origin")
    files = put(client, tmp_path / "origin")
    total = sum(map(len, files.values()))
    assert fetch(tmp_path, credentials, max_bytes=total) == files
    refused(Problem.TOO_LARGE, tmp_path, credentials, max_bytes=total - 1)
