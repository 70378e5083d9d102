"""What errors of the stores' back ends mean, and what each back end is given. No server."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from python_backend.adapters import source_stores
from python_backend.adapters.source_problem import (
    AddressRefused,
    Interrupted,
    Problem,
    SourceFailed,
    explained,
)
from python_backend.adapters.source_stores import StoreSource
from python_backend.adapters.source_uri import Rules
from python_backend.adapters.source_watch import Watch
from python_backend.source_settings import Credentials


class Answered(Exception):
    """An error that carries an HTTP response, as the Hub's do."""

    def __init__(self, status: int) -> None:
        super().__init__("https://hub.example/secret?token=hidden")
        self.response = SimpleNamespace(status_code=status)


class NoCredentialsError(Exception):
    """As botocore's."""


class FileExpired(OSError):
    """As s3fs's."""


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (FileNotFoundError("models/x"), Problem.NOT_FOUND),
        (Answered(404), Problem.NOT_FOUND),
        (Answered(401), Problem.FORBIDDEN),
        (PermissionError("hidden"), Problem.FORBIDDEN),
        (NoCredentialsError("hidden"), Problem.FORBIDDEN),
        (FileExpired("hidden"), Problem.CHANGED),
        (Answered(412), Problem.CHANGED),
        (OSError(errno.EINVAL, "At least one of the pre-conditions"), Problem.CHANGED),
        (Answered(400), Problem.NOT_FOUND),
        (AddressRefused(), Problem.NOT_ALLOWED),
        (Answered(503), None),
        (Answered(429), None),
        (TimeoutError("hidden"), None),
        (ConnectionResetError("hidden"), None),
        (ValueError("hidden"), None),
    ],
)
def test_what_an_error_means(error: Exception, problem: Problem | None) -> None:
    found = explained(error, "adapter_config.json")
    if problem is None:
        assert isinstance(found, Interrupted)
        return
    assert isinstance(found, SourceFailed) and found.problem is problem
    assert "hidden" not in found.message and "models/x" not in found.message


@pytest.mark.parametrize(
    ("uri", "path", "options"),
    [
        ("s3://b/x", "b/x", {"key": "k", "client_kwargs": {"region_name": "r"}}),
        ("gs://b/x/", "b/x", {"token": "t", "access": "read_only"}),
        ("hf://o/r@main/x", "o/r@main/x", {"token": "h"}),
    ],
)
def test_what_a_back_end_is_given(
    uri: str, path: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Store:
        def info(self, name: str, **_: Any) -> dict[str, Any]:
            given["name"] = name
            return {"size": 3, "etag": "e", "generation": 7, "blob_id": None}

    def filesystem(scheme: str, **options: Any) -> Store:
        given.update(options, scheme=scheme)
        return Store()

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    credentials = Credentials(
        s3={"key": "k", "region_name": "r"}, gs={"token": "t"}, hf={"token": "h"}
    )
    remote = Rules(["s3", "gs", "hf"]).remote(uri)
    source = StoreSource(remote, credentials, Watch(5, threading.Event()))
    stamp = source.stamp("adapter_config.json")
    assert (stamp.size, stamp.tag) == (3, "etag=e|generation=7")
    assert given["name"] == f"{path}/adapter_config.json"
    assert given.items() >= {**options, "skip_instance_cache": True}.items()


@pytest.mark.parametrize(
    ("error", "problem"),
    [(ImportError("hidden"), Problem.NOT_ALLOWED), (ValueError("hidden"), Problem.CREDENTIALS)],
)
def test_a_back_end_that_does_not_start(
    error: Exception, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filesystem(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    with pytest.raises(SourceFailed) as caught:
        StoreSource(Rules(["gs"]).remote("gs://b"), Credentials(), Watch(5, threading.Event()))
    assert caught.value.problem is problem and "hidden" not in caught.value.message


@pytest.mark.parametrize("scheme", ["s3", "gs", "hf"])
def test_the_real_back_ends_take_what_they_are_given(scheme: str) -> None:
    options = source_stores._options(scheme, Credentials(gs={"token": "anon"}))
    store = fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **options)
    assert scheme in (store.protocol if isinstance(store.protocol, tuple) else [store.protocol])
