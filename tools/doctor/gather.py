"""Puts the facts together: the one place that looks at settings, files, packages and NVML."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ensemble.access import PolicyError, load_policy
from python_backend import model_json, nvml, settings
from python_backend.adapters import decisions, multi_lora
from python_backend.engine import arguments
from python_backend.settings import Settings, SettingsError
from python_backend.source_settings import CredentialsError, read_credentials
from tools import layout
from tools.doctor import files, machine
from tools.doctor.facts import AdapterRoot, Facts, ModelFiles
from tools.policy import check as policy_check
from tools.policy.lines import Lines
from tools.serving.arguments import Ports

_VERSION_DIR = layout.ROOT / "model_repository" / "vllm_lora" / "1"


def gather(
    config: Path,
    *,
    host: str,
    ports: Ports | None,
    state_dir: Path | None,
    environment: Mapping[str, str],
) -> Facts:
    """All there is to know; what is missing is a fact too, and raises nothing.

    Args:
        config: serving.yaml.
        ports: those that are to be free; None: not looked at.
        state_dir: in place of the settings' own.
        environment: variables of this process.
    """
    found, problem = _settings(config, state_dir, environment)
    installed = machine.versions(environment)
    inventory = machine.visible(nvml.Nvml(_pynvml).inventory(), environment)
    facts = Facts(
        settings=found,
        settings_problem=problem,
        engine_names=machine.engine_names(),
        gpus=inventory,
        has_gpu=Path("/dev/nvidiactl").exists(),
        machine=machine.machine(host, ports, found.state_dir if found else None),
        versions=installed,
        host=host,
    )
    return _with_settings(facts, found) if found else facts


def _with_settings(facts: Facts, found: Settings) -> Facts:
    engine, engine_problem = _engine(found)
    listed, listed_problem = _listed(found)
    adapters = files.adapters(found, listed)
    policy_problem, remarks = _policy(found, adapters)
    return dataclasses.replace(
        facts,
        engine=engine,
        engine_problem=engine_problem or listed_problem,
        model=files.model(engine) if engine else ModelFiles(),
        adapters=adapters,
        decisions_problem=_decisions_problem(found),
        file_problems=tuple(_file_problems(found)),
        policy_problem=policy_problem,
        policy_remarks=tuple(remarks),
    )


def _settings(
    config: Path, state_dir: Path | None, environment: Mapping[str, str]
) -> tuple[Settings | None, str]:
    try:
        return settings.load(config, state_dir=state_dir, environment=environment), ""
    except SettingsError as error:
        return None, str(error)
    except OSError as error:
        return None, f"{config}: {error.strerror} ({error.filename}); let this user read it"


def _engine(found: Settings) -> tuple[dict[str, Any], str]:
    """model.json and settings, as they are given to vLLM; and what is refused about them."""
    try:
        raw = {**model_json.load(_VERSION_DIR / model_json.FILE), **found.engine}
    except (SettingsError, OSError) as error:
        return dict(found.engine), str(error)
    try:
        arguments.engine_arguments(raw, 0)
    except (arguments.EngineStartError, TypeError, ValueError) as error:
        return raw, str(error)
    return raw, ""


def _listed(found: Settings) -> tuple[tuple[str, ...], str]:
    aliases = {name: route.to for name, route in found.aliases.items()}
    path = _VERSION_DIR / multi_lora.MULTI_LORA_JSON
    try:
        return tuple(multi_lora.load(path, aliases, found.adapters.root)), ""
    except SettingsError as error:
        return (), str(error)


def _decisions_problem(found: Settings) -> str:
    try:
        decisions.load(found.state_dir / decisions.FILE)
    except SettingsError as error:
        return str(error)
    return ""


def _file_problems(found: Settings) -> Iterator[str]:
    credentials, gate = found.sources.credentials_file, found.fusion.auto.gate
    try:
        read_credentials(credentials)
    except CredentialsError as error:
        yield f"sources.credentials_file {credentials}: {error}; correct it, fetches fail without"
    if gate is not None and not os.path.isdir(gate):
        yield f"fusion.auto.gate {gate}: no such folder; python -m tools train-gate makes one"


def _policy(found: Settings, adapters: AdapterRoot) -> tuple[str, list[policy_check.Remark]]:
    try:
        policy = load_policy(found.policy)
        lines = Lines(found.policy.read_text("utf-8"))
    except (PolicyError, OSError, yaml.YAMLError) as error:
        return str(error), []
    known = None if adapters.problem else adapters.known
    return "", policy_check.remarks(policy, lines, now_s=time.time(), known=known)


def _pynvml() -> Any:
    """nvidia-ml-py, or the copy that vLLM carries; vLLM itself is not imported."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        package = importlib.util.find_spec("vllm")
        if package is None or not package.origin:
            raise
        path = Path(package.origin).parent / "third_party" / "pynvml.py"
        spec = importlib.util.spec_from_file_location("pynvml_of_vllm", path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        # It looks itself up by its name.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
