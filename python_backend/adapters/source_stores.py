"""Adapters in object stores and on the Hub, through fsspec: ``s3``, ``gs`` and ``hf``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import fsspec

from python_backend.adapters.source_problem import Problem, SourceFailed, explained, failed
from python_backend.adapters.source_stream import Stamp
from python_backend.adapters.source_uri import Remote
from python_backend.adapters.source_watch import Watch
from python_backend.source_settings import Credentials

T = TypeVar("T")
#: Asked for at a time, bytes: what is read again at most when a connection breaks.
BLOCK_BYTES = 4 << 20
#: A server that says nothing for so long is taken for dead, seconds.
STALL_S = 30.0
#: What tells one version of an object from another, whatever the store.
_VERSION_KEYS = ("ETag", "etag", "VersionId", "generation", "blob_id", "LastModified", "mtime")


def _options(scheme: str, credentials: Credentials) -> dict[str, Any]:
    if scheme == "s3":
        given: dict[str, Any] = dict(credentials.s3)
        region = given.pop("region_name", None)
        return {
            **given,
            "client_kwargs": {"region_name": region} if region else {},
            "config_kwargs": {"connect_timeout": STALL_S, "read_timeout": STALL_S},
        }
    if scheme == "gs":
        return {"access": "read_only", "timeout": STALL_S, **credentials.gs}
    return dict(credentials.hf)


class StoreStream:
    """An object from a position on."""

    def __init__(self, file: Any, offset: int, stamp: Stamp, call: Callable[..., Any]) -> None:
        self.offset, self.stamp = offset, stamp
        self._file, self._call = file, call
        file.seek(offset)

    def read(self) -> bytes:
        """The next bytes; none at the end."""
        data: bytes = self._call(lambda: self._file.read(BLOCK_BYTES))
        return data

    def close(self) -> None:
        """Nothing is held between two reads."""


class StoreSource:
    """The folder ``remote`` of a store."""

    def __init__(self, remote: Remote, credentials: Credentials, watch: Watch) -> None:
        self._path, self._watch = remote.path, watch
        # No cache: a listing or a client of another fetch may be old, or another's.
        try:
            self._fs = fsspec.filesystem(
                remote.scheme,
                skip_instance_cache=True,
                use_listings_cache=False,
                **_options(remote.scheme, credentials),
            )
        except ImportError:
            raise SourceFailed(
                Problem.NOT_ALLOWED, f"the back end of {remote.scheme} is not installed"
            ) from None
        except Exception:
            # Its text may repeat what it was given.
            raise SourceFailed(
                Problem.CREDENTIALS,
                f"the back end of {remote.scheme} does not take its credentials",
            ) from None

    def open(self, name: str, offset: int, seen: Stamp | None) -> StoreStream:
        """The file from ``offset`` on.

        Raises:
            SourceFailed, Interrupted: it cannot be read, or is another than ``seen``.
        """
        path = f"{self._path}/{name}"
        file = self._call(
            name,
            lambda: self._fs.open(path, "rb", cache_type="none", block_size=BLOCK_BYTES),
        )
        stamp = _stamp(self._call(name, lambda: file.details))
        if seen is not None and stamp != seen:
            raise failed(Problem.CHANGED, name)
        return StoreStream(file, offset, stamp, lambda work: self._call(name, work))

    def stamp(self, name: str) -> Stamp:
        """What the file is now. Raises as ``open``."""
        return _stamp(self._call(name, lambda: self._fs.info(f"{self._path}/{name}", refresh=True)))

    def _call(self, name: str, work: Callable[[], T]) -> T:
        def guarded() -> T:
            try:
                return work()
            except Exception as error:
                raise explained(error, name) from None

        return self._watch.call(guarded)

    def close(self) -> None:
        """The back ends close their connections when they are collected."""


def _stamp(info: dict[str, Any]) -> Stamp:
    version = [f"{key}={info[key]}" for key in _VERSION_KEYS if info.get(key) is not None]
    return Stamp(info.get("size"), "|".join(version))
