"""What may import what, and a few things that may stand nowhere."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("model_repository", "ensemble", "python_backend")
#: A package may import itself and what stands after it.
LAYERS = {
    "model_repository": {"ensemble", "python_backend"},
    "ensemble": {"ensemble", "python_backend"},
    "python_backend": {"python_backend"},
}
OURS = {"model_repository", "ensemble", "python_backend", "tools", "loadtests", "tests"}
ENGINE = "python_backend/engine"
#: They run inside vLLM's worker, or compute what it computes, and load torch with themselves.
IN_WORKER = {
    f"{ENGINE}/{name}.py"
    for name in (
        "worker",
        "cpu_kernels",
        "cpu_plan",
        "cpu_rows",
        "cpu_wrapper",
        "private",
        "trimming",
    )
}
SECRET = re.compile(r"(^|_)(mac|hmac|signature|secret|password|token|api_key|key_sha256)$")
#: Modules of vLLM that are nobody's business but ``private``'s.
PRIVATE = re.compile(r"lora_manager|worker_manager|model_manager|punica|^vllm.*\._(?!_)")
#: Compares a token's spelling with itself; the MAC goes through compare_digest after it.
NO_SECRET = {"_b64(raw_mac) != mac"}
MAX_LINES, MAX_MODEL_LINES = 300, 60
#: Still too long, with the length they may not grow beyond: to be split.

#: Files of the engine that import vLLM, when they are called.
KNOW_VLLM = ("private", "async_llm", "convert", "families", "session")


def sources(*folders: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [
        path
        for path in listed
        if (ROOT / path).exists() and (not folders or path.split("/")[0] in folders)
    ]


def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"), path)


def imported(nodes: Iterator[ast.AST] | list[ast.stmt]) -> Iterator[str]:
    """Every module that ``nodes`` import, ``from a import b`` as ``a.b``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top(names: Iterator[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def at_import(module: ast.Module) -> list[ast.stmt]:
    """The statements that run at import: not those in functions or under TYPE_CHECKING."""
    found: list[ast.stmt] = []
    waiting = list(module.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            waiting += node.body + getattr(node, "orelse", [])
    return found


def test_there_is_something_to_judge() -> None:
    for folder in PRODUCT:
        assert sources(folder), folder


@pytest.mark.parametrize("path", sources(*PRODUCT))
def test_dependencies_point_one_way(path: str) -> None:
    ours = top(imported(ast.walk(tree(path)))) & OURS
    assert ours <= LAYERS[path.split("/")[0]]


@pytest.mark.parametrize("path", sources("tools", "loadtests"))
def test_tools_do_not_import_tests(path: str) -> None:
    forbidden = {"tests", "model_repository"}
    if not path.startswith(("loadtests/", "tools/report/")):
        forbidden.add("loadtests")
    assert not top(imported(ast.walk(tree(path)))) & forbidden


@pytest.mark.parametrize("path", sources(*PRODUCT, "tools", "loadtests"))
def test_only_wire_knows_triton(path: str) -> None:
    if path.startswith("python_backend/wire/"):
        return
    assert "triton_python_backend_utils" not in top(imported(ast.walk(tree(path))))


@pytest.mark.parametrize("path", sources(*PRODUCT))
def test_only_the_engine_knows_vllm(path: str) -> None:
    names = list(imported(ast.walk(tree(path))))
    if path not in {f"{ENGINE}/{name}.py" for name in KNOW_VLLM}:
        assert "vllm" not in top(iter(names))
    if path != f"{ENGINE}/private.py":
        assert [name for name in names if PRIVATE.search(name)] == []


@pytest.mark.parametrize("path", sources("ensemble"))
def test_the_gate_needs_neither_vllm_nor_torch(path: str) -> None:
    assert not top(imported(ast.walk(tree(path)))) & {"vllm", "torch", "transformers", "peft"}


@pytest.mark.parametrize("path", sources("python_backend"))
def test_vllm_and_torch_are_imported_when_needed(path: str) -> None:
    if path in IN_WORKER:
        return
    assert not top(imported(at_import(tree(path)))) & {"vllm", "torch"}


@pytest.mark.parametrize("path", sources(*PRODUCT))
def test_private_names_of_vllm_stand_in_one_file(path: str) -> None:
    """Attributes with an underscore are our own objects' (``self``, ``cls``) everywhere else."""
    if path == f"{ENGINE}/private.py":
        return
    module = tree(path)
    strangers = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node.value) not in {"self", "cls"}
        and not _defined_here(module, node.attr)
    ]
    assert strangers == []


def _defined_here(module: ast.Module, name: str) -> bool:
    defined = {
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    stored = {
        node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return name in defined | stored


@pytest.mark.parametrize("path", sources())
def test_names_sizes_and_pickles(path: str) -> None:
    name, text = Path(path).name, (ROOT / path).read_text("utf-8")
    assert name not in {"triton.py", "vllm.py"}, "it would shadow the package"
    lines = len(text.splitlines())
    assert lines <= MAX_LINES
    if path.startswith("model_repository/"):
        assert name == "model.py"
        assert lines <= MAX_MODEL_LINES
    module = ast.parse(text)
    calls = {ast.unparse(n.func) for n in ast.walk(module) if isinstance(n, ast.Call)}
    assert not calls & {"pickle.load", "pickle.loads", "pickle.Unpickler"}
    if not path.startswith("tests/"):
        # Tests may write a pickle, to see it refused.
        pickles = {"pickle", "cPickle", "dill", "joblib", "cloudpickle"}
        assert not top(imported(ast.walk(module))) & pickles
        assert not calls & {"torch.load", "numpy.load", "np.load", "eval", "exec"}


@pytest.mark.parametrize("path", sources(*PRODUCT, "tools"))
def test_secrets_are_compared_in_constant_time(path: str) -> None:
    leaks = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
        and any(_secret(side) for side in (node.left, *node.comparators))
        and not any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
        and ast.unparse(node) not in NO_SECRET
    ]
    assert leaks == []


def _secret(node: ast.expr) -> bool:
    name = getattr(node, "id", None) or getattr(node, "attr", None) or ""
    if isinstance(node, ast.Call):
        return _secret(node.func)
    return bool(SECRET.search(name.lower()))


@pytest.mark.parametrize(
    "path",
    ["python_backend/ticket.py", "ensemble/access.py", "python_backend/adapters/signing.py"],
)
def test_where_secrets_are_compared(path: str) -> None:
    calls = [ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
    assert "hmac.compare_digest" in calls
