"""A model repository in which each group has an engine of its own.

Every model of ``model_repository`` once a group, under the name ``<model>_<group>``: configurations
with the group's names in them, sockets as they are, and the group's settings beside its engine.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from python_backend import settings
from python_backend.engine import arguments, fitting
from python_backend.engine.arguments import EngineStartError
from python_backend.engine_group import GROUP, SETTINGS_FILE, member
from python_backend.model_options import DEVICES
from python_backend.settings import SettingsError
from python_backend.ticket import ENGINE_AUDIENCE
from tools.layout import ROOT
from tools.render.fleet import Fleet, GroupEngine
from tools.render.reading import Problem, RenderError

SOURCE = ROOT / "model_repository"
SETTINGS = "serving.yaml"
#: What vLLM takes of a device's memory unless it is told; and what engines may take together.
_UTILIZATION, _MOST = 0.9, 0.95
_STEP = re.compile(r'^(\s*model_name: ")(\w+)(")', re.M)


def engines(fleet: Fleet) -> dict[str, GroupEngine]:
    """The groups that have an engine of their own, by name."""
    return {name: group.engine for name, group in sorted(fleet.groups.items()) if group.engine}


def problems(fleet: Fleet, serving: Path) -> list[Problem]:
    """What of the fleet cannot be rendered, or would not start.

    Args:
        serving: the file of the settings that all engines share.
    """
    found = engines(fleet)
    if not found:
        return [(("groups",), "no group has an engine; write engine: {} into those that have one")]
    wrong: list[Problem] = []
    for name, engine in found.items():
        where = ("groups", name, "engine")
        try:
            raw = group_settings(serving, engine)
        except RenderError as error:
            return [(("serving",), str(error))]
        wrong += [((*where, *at), text) for at, text in _engine(engine, raw, serving)]
    return wrong + list(_shared(found))


def _engine(engine: GroupEngine, raw: dict[str, Any], serving: Path) -> Iterator[Problem]:
    if len(set(engine.gpus)) != len(engine.gpus):
        yield ("gpus",), "one stands here twice; remove it"
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, SETTINGS)
            path.write_text(yaml.safe_dump(raw), "utf-8")
            checked = settings.load(path)
        needed = arguments.workers(checked.engine)
        if engine.gpus and len(engine.gpus) != needed:
            yield (
                ("gpus",),
                f"{len(engine.gpus)} listed, but tensor_parallel_size and pipeline_parallel_size "
                f"make {needed} workers; list as many",
            )
        fitting.check(arguments.engine_arguments(checked.engine, 0), checked.memory_limit_bytes)
    except SettingsError as error:
        for line in str(error).replace(f"{path}: ", "").splitlines():
            yield ("settings",), f"with {serving.name} it says {line}; correct it"
    except (EngineStartError, TypeError, ValueError) as error:
        yield ("settings",), f"with {serving.name} this engine would not start: {error}"


def _shared(found: dict[str, GroupEngine]) -> Iterator[Problem]:
    """Devices whose engines together want more memory than there is."""
    taken: dict[int, list[tuple[str, float]]] = {}
    for name, engine in found.items():
        own = engine.settings.get("engine")
        share = own.get("gpu_memory_utilization") if isinstance(own, dict) else None
        for gpu in engine.gpus:
            users = taken.setdefault(gpu, [])
            users.append((name, float(share) if isinstance(share, int | float) else _UTILIZATION))
    for gpu, users in sorted(taken.items()):
        if len(users) > 1 and sum(share for _, share in users) > _MOST:
            name = users[-1][0]
            text = " and ".join(f"{user} ({share:g})" for user, share in users)
            yield (
                ("groups", name, "engine", "gpus"),
                f"GPU {gpu} is shared by {text}: more than {_MOST} of its memory; lower "
                "settings.engine.gpu_memory_utilization, or give each its own",
            )


def group_settings(serving: Path, engine: GroupEngine) -> dict[str, Any]:
    """The shared settings with the group's own over them, and absolute paths.

    Raises:
        RenderError: the shared ones cannot be read.
    """
    try:
        raw = yaml.safe_load(serving.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RenderError(f"{serving} cannot be read: {error}; correct it") from None
    if not isinstance(raw, dict):
        raise RenderError(f"{serving} must be a mapping of settings; correct it")
    merged = settings.resolved(_over(raw, engine.settings), serving.resolve().parent, None)
    found = _plain(merged)
    assert isinstance(found, dict)  # noqa: S101 - for the type
    return found


def _over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _over(base[key], value) if both else value
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def files(fleet: Fleet, serving: Path) -> dict[str, str]:
    """Every file of the repository by its path in it; the fleet has no ``problems``."""
    found: dict[str, str] = {}
    for name, engine in engines(fleet).items():
        for config in sorted(SOURCE.glob("*/config.pbtxt")):
            model = config.parent.name
            folder = member(model, name)
            found[f"{folder}/config.pbtxt"] = _config(config.read_text("utf-8"), name, engine)
            # An ensemble has no file in its version's folder, and Triton wants the folder.
            found[f"{folder}/1/.gitkeep"] = ""
            if (socket := config.parent / "1" / "model.py").exists():
                del found[f"{folder}/1/.gitkeep"]
                found[f"{folder}/1/model.py"] = socket.read_text("utf-8")
        shared = yaml.safe_dump(group_settings(serving, engine), sort_keys=True)
        text = f"# Rendered from fleet.yaml and {serving.name}: change those.\n{shared}"
        found[f"{member(ENGINE_AUDIENCE, name)}/{SETTINGS}"] = text
    return found


def _config(text: str, group: str, engine: GroupEngine) -> str:
    if "ensemble_scheduling" in text:
        return _STEP.sub(lambda found: f"{found[1]}{member(found[2], group)}{found[3]}", text)
    own = {
        GROUP: group,
        SETTINGS_FILE: f"../{member(ENGINE_AUDIENCE, group)}/{SETTINGS}",
    }
    # Who takes devices by itself: it is told which.
    if "KIND_MODEL" in text and engine.gpus:
        own[DEVICES] = ",".join(map(str, engine.gpus))
    lines = ",\n".join(
        f'  {{ key: "{key}", value: {{ string_value: "{value}" }} }}' for key, value in own.items()
    )
    return f"{text}\n# Of {group} alone.\nparameters [\n{lines}\n]\n"


def write(out: Path, found: dict[str, str]) -> None:
    """Makes the folder ``out`` of these files: whole, or as it was.

    Raises:
        RenderError: it holds what was not rendered, or cannot be written; says what to do.
    """
    kinds = "|".join(path.parent.name for path in SOURCE.glob("*/config.pbtxt"))
    if out.exists():
        strange = [
            entry.name
            for entry in (out.iterdir() if out.is_dir() else [out])
            if not re.fullmatch(rf"({kinds})_[a-z0-9]+", entry.name)
        ]
        if strange:
            raise RenderError(
                f"{out}: holds {min(strange)}, which was not rendered; choose another --out"
            )
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as work:
            new = Path(work, "new")
            for name, text in sorted(found.items()):
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            old = Path(work, "old")
            if out.exists():
                out.rename(old)
            try:
                new.rename(out)
            except OSError:
                old.rename(out)
                raise
    except OSError as error:
        raise RenderError(
            f"{out}: cannot be written: {error.strerror}; choose another --out"
        ) from None
