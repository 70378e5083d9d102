"""Commands to a running server over HTTP, through the model ``lora_admin``."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_backend import errors
from python_backend.engine_group import member

MODEL = "lora_admin"
#: Longest time for one answer, seconds: a removal waits for others that change the same adapter.
LIMIT_S = 120.0
POLL_S = 0.3


class Refused(Exception):
    """The server answered with an error; the text is its message, code first."""


class NotReached(Exception):
    """No answer, or no key to ask with; the text says what to do."""


class AdminClient:
    """Speaks as one key.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        key: the API key of a principal with the role admin.
        group: the group whose engine is meant, where a server has several.

    Raises:
        NotReached: the URL is none of HTTP.
    """

    def __init__(self, url: str, key: str, group: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise NotReached(f"--url {url}: must begin with http:// or https://")
        model = member(MODEL, group) if group else MODEL
        self._url = f"{url.rstrip('/')}/v2/models/{model}/infer"
        self._key = key

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """The result of one command; fields that are None are left out.

        Raises:
            Refused, NotReached.
        """
        command = {"op": op, **{name: v for name, v in fields.items() if v is not None}}
        body = {
            "inputs": [
                _text("command", json.dumps(command)),
                _text("credential", self._key),
            ]
        }
        request = urllib.request.Request(  # noqa: S310 the scheme was checked
            self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as response:  # noqa: S310
                outputs = json.load(response)["outputs"]
            result: dict[str, Any] = json.loads(outputs[0]["data"][0])
            return result
        except urllib.error.HTTPError as error:
            raise Refused(_message(error)) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise NotReached(f"{self._url}: {reason}; is the server up, and --url right?") from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise NotReached(f"{self._url}: this is not the answer of a {MODEL}") from None

    def follow(self, job: str, step: Callable[[str], None]) -> dict[str, Any]:
        """The job once it has ended; ``step`` hears what it is doing meanwhile.

        Raises:
            Refused: also if the job has failed.
            NotReached.
        """
        while True:
            found = self.call("job", job=job)
            if found["state"] == "failed":
                raise Refused(str(found["error"]))
            if found["state"] == "done":
                return found
            step(str(found["step"]))
            time.sleep(POLL_S)


def _text(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}


def _message(error: urllib.error.HTTPError) -> str:
    try:
        text = str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"internal: HTTP {error.code} {error.reason}"
    parsed = errors.parse(text)
    # What is not ours comes from Triton itself, such as a model that is not there.
    return text if isinstance(parsed, errors.Internal) else parsed.message


def read_key(key_file: Path | None, key_env: str) -> str:
    """The API key: of a file (the key alone, or a demo's ``keys.json``), else of the environment.

    Raises:
        NotReached: there is none.
    """
    if key_file is None:
        if key := os.environ.get(key_env, "").strip():
            return key
        raise NotReached(f"no key: set {key_env}, or give --key-file FILE")
    try:
        text = key_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotReached(f"--key-file {key_file}: cannot be read: {error}") from None
    if not text.startswith("{"):
        if not text:
            raise NotReached(f"--key-file {key_file}: is empty")
        return text
    try:
        return str(json.loads(text)["admin"])
    except (ValueError, KeyError):
        raise NotReached(f"--key-file {key_file}: JSON without a key 'admin'") from None
