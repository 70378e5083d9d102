"""Three calls to copy. The credential is read from keys.json when the call runs: none is shown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

_KEY = "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])"
_MARK = "@KEY@"


def _question(text: str) -> str:
    return json.dumps([{"role": "user", "content": text}])


def _body(fields: Mapping[str, object], keys: Path, who: str) -> str:
    """A JSON body as one shell word, with the key filled in by the shell."""
    quoted = shlex.quote(json.dumps(fields))
    key = f'"$(python3 -c {shlex.quote(_KEY)} {shlex.quote(str(keys))} {who})"'
    # '…"credential": "' ends the quoted part, the key follows, and it goes on quoted.
    return quoted.replace(_MARK, f"'{key}'")


def _tensor(name: str, value: str) -> dict[str, object]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}


def calls(http: str, keys: Path) -> list[str]:
    """One curl a line: /generate, /generate_stream and /infer, each as another department.

    Args:
        http: ``host:port``.
        keys: the demo's ``keys.json``.
    """
    url = f"http://{http}/v2/models"
    sampling = json.dumps({"max_tokens": 80, "temperature": 0})
    generate = {
        "messages": _question("Invoice paid twice to a new supplier abroad. Assess the risk."),
        "lora_id": "fin_risk_v1",
        "credential": _MARK,
        "sampling_parameters": sampling,
    }
    stream = {
        "messages": _question("My parcel has not arrived."),
        "lora_id": "svc_chat_v1",
        "credential": _MARK,
        "sampling_parameters": sampling,
        "stream": True,
    }
    infer = {
        "inputs": [
            _tensor("messages", _question("Write test cases for a login form.")),
            _tensor("lora_id", "qa_testgen_v1"),
            _tensor("credential", _MARK),
            _tensor("sampling_parameters", sampling),
        ]
    }
    return [
        f"curl -s {url}/lora_generate/generate -d {_body(generate, keys, 'fin')}",
        f"curl -sN {url}/lora_stream/generate_stream -d {_body(stream, keys, 'svc')}",
        f"curl -s {url}/lora_infer/infer -d {_body(infer, keys, 'qa')}",
    ]
