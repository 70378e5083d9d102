"""README says what is there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from tritonclient.grpc import model_config_pb2

from ensemble.access import Policy
from python_backend import errors
from python_backend.settings import Settings
from tests.contract.test_configs import MODELS, config
from tools.__main__ import COMMANDS
from tools.demo.settings import KEY_NAMES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
MAX_LINES = 226
#: Folders whose own folders the tree shows.
OPENED = ("model_repository", "python_backend")
#: The status Triton 2.51 gives on /infer. A cancelled caller reads none.
HTTP = {"INVALID_ARG": "400", "NOT_FOUND": "404", "UNAVAILABLE": "503", "INTERNAL": "500"}


def block(language: str, after: str = "") -> str:
    """The first fenced block of ``language`` behind the text ``after``."""
    found = re.search(rf"^```{language}\n(.*?)^```", README[README.index(after) :], re.M | re.S)
    assert found, f"no block of {language!r} after {after!r}"
    return found[1]


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under ``heading``, its head left out."""
    found = re.search(r"^\|(.*\n)(\|.*\n)+", README[README.index(heading) :], re.M)
    assert found
    lines = found[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def folders(under: str = "") -> set[str]:
    """Folders git knows, straight under ``under``."""
    done = subprocess.run(
        ["git", "ls-files", "--", under or "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    depth = len(Path(under).parts)
    parts = [Path(line).parts for line in done.stdout.splitlines()]
    return {path[depth] for path in parts if len(path) > depth + 1}


def test_one_page() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_the_tree_is_the_real_one() -> None:
    shown: dict[str, set[str]] = {"": set()}
    top = ""
    for line in block("", "## The tree").splitlines():
        if line.startswith(" " * 20):  # the rest of the line before
            continue
        name = line.split()[0].rstrip("/")
        if line.startswith("  "):
            shown.setdefault(top, set()).add(name)
        else:
            top = name
            shown[""].add(name)
    hidden = {name for name in folders() if name.startswith(".")}
    assert shown.pop("") == folders() - hidden
    assert shown == {folder: folders(folder) for folder in OPENED}


def test_every_target_of_make_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z]+)\b", README, re.M))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert {"serve", "test"} <= named <= targets


def test_every_command_exists() -> None:
    named = set(re.findall(r"python -m tools ([a-z-]+)", README))
    assert {"serve", "demo"} <= named <= COMMANDS.keys()
    listed = re.search(r"^tools/ +python -m tools: ((?:.*,\n)*.*)$", README, re.M)
    assert listed and set(re.split(r",\s+", listed[1])) == COMMANDS.keys()


def test_every_code_is_in_the_table() -> None:
    table = [(row[0].strip("`"), row[2], row[3]) for row in rows("## Errors")]
    assert table == [
        (code, kind.triton_status, HTTP.get(kind.triton_status, "–"))
        for code, kind in errors.CODES.items()
    ]


def setting_keys(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    """Dotted keys with their defaults; None where there is none."""
    found: dict[str, object] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= setting_keys(kind, f"{prefix}{name}.")
        else:
            found[prefix + name] = None if field.is_required() else field.default
    return found


def test_every_setting_is_in_the_table() -> None:
    real = setting_keys(Settings)
    shown: dict[str, str] = {}
    for keys, default, _ in rows("## Settings"):
        names = re.findall(r"`([^`]+)`", keys)
        shown |= zip(names, default.split(", "), strict=True)
    assert shown.keys() == real.keys()
    units = {"GiB": 1 << 30, "MiB": 1 << 20}
    for name, default in real.items():
        number = re.fullmatch(r"([0-9.]+)(?: (\w+))?", shown[name])
        if number:
            assert float(number[1]) * units.get(number[2], 1) == default
        elif isinstance(default, str | bool):
            assert shown[name] == str(default).lower()
        elif default is not None:
            assert shown[name] in {"–", "none"}


def test_every_variable_occurs_in_the_code() -> None:
    named = set(re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+|PYTHONPATH)`", README))
    named -= {kind.triton_status for kind in errors.CODES.values()}
    assert {"LORA_SERVING_CONFIG", "LORA_STATE_DIR", "PYTHONPATH"} <= named
    code = "".join(
        path.read_text("utf-8")
        for folder in ("python_backend", "ensemble", "tools")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert {name for name in named if name not in code} == set()


def test_every_file_named_exists() -> None:
    for name in re.findall(r"`(tools/[a-z_/.]+|Dockerfile)`", README):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^):]+)\)", README):
        assert (ROOT / name).exists(), name


def test_every_model_named_exists() -> None:
    named = set(re.findall(r"\b(?:lora_(?:gate|generate|stream|infer|\w+(?=/1)))\b", README))
    assert named <= set(MODELS)
    assert {row[0].strip("`") for row in rows("## Which door")} == set(MODELS) - {
        "lora_admin",
        "lora_gate",
        "vllm_lora",
    }


def inputs(model: str) -> dict[str, str]:
    """Inputs of a model with their types."""
    return {t.name: model_config_pb2.DataType.Name(t.data_type) for t in config(model).input}


def test_curl_calls_fit_the_models() -> None:
    script = block("bash")
    calls = re.findall(r"/v2/models/(\w+)/(\w+) -d '(\{.*?\})'\n", script, re.S)
    assert [call[:2] for call in calls] == [
        ("lora_generate", "generate"),
        ("lora_stream", "generate_stream"),
    ]
    for model, path, body in calls:
        who = re.search(r"'\$\(key (\w+)\)'", body)
        assert who and who[1] in KEY_NAMES
        fields = json.loads(body.replace(who[0], "secret"))
        known = inputs(model)
        assert {name for name in fields if name not in known} <= {"max_tokens", "temperature"}
        for name, value in fields.items():
            expected = {"TYPE_STRING": str, "TYPE_BOOL": bool}.get(known.get(name, ""), int)
            assert type(value) is expected, name
        assert isinstance(json.loads(fields["messages"]), list)
        assert fields["lora_id"].split("_")[0] == who[1]
        assert fields.get("stream", False) is (path == "generate_stream")


def test_the_python_call_fits_the_models() -> None:
    code = block("python")
    compile(code, "README", "exec")
    tensors = set(re.findall(r'text\(client, "(\w+)"', code)) | {"stream"}
    models = set(re.findall(r'"(lora_(?:infer|stream|generate))"', code))
    assert models == {"lora_infer", "lora_stream"}
    for model in models:
        assert tensors <= inputs(model).keys()
    outputs = set(re.findall(r'as_numpy\("(\w+)"\)', code))
    assert outputs <= {t.name for t in config("lora_infer").output}
    who = re.search(r'keys\.json"\)\)\["(\w+)"\]', code)
    assert who and who[1] in KEY_NAMES


def test_the_policy_example_is_a_policy() -> None:
    text = block("yaml").replace("<sha256 of the key, hex>", "0" * 64)
    policy = Policy.model_validate(yaml.safe_load(text))
    assert policy.may_use(policy.principals[0], "fin_risk_v1")


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_lines_fit_a_screen(page: str) -> None:
    for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), start=1):
        assert line.startswith("|") or len(line) <= 110, f"{page}:{number}"
