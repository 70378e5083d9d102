"""``serving.yaml`` as frozen, validated objects.

Unknown keys and wrong values stop the start with the file, the key and what is wrong. Paths are
relative to the file they stand in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from python_backend.access_settings import AccessSettings, AuditSettings, overridden
from python_backend.adapters.aliases import Route, check_alias
from python_backend.admission_settings import AdmissionSettings
from python_backend.breaker_settings import BreakerSettings
from python_backend.fusion_settings import FusionSettings
from python_backend.observation_settings import ObservationSettings
from python_backend.signing_settings import SigningSettings
from python_backend.source_settings import SourceSettings
from python_backend.tier_settings import TierSettings

CONFIG_VARIABLE = "LORA_SERVING_CONFIG"
STATE_VARIABLE = "LORA_STATE_DIR"


class SettingsError(Exception):
    """A settings file that cannot be used; the text names the file, the key and the cure."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AdapterSettings(_Frozen):
    """Where adapters come from and how large they may be."""

    #: Folder whose sub-folders are adapters, each named by its lora_id.
    root: Path
    #: Largest weight file that is looked at, bytes.
    max_file_bytes: int = Field(default=2 << 30, gt=0)
    #: How long a new or changed folder must be at rest before it is looked at, seconds.
    settle_s: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    #: Folders that `add` and `update` may copy from; none: only what lies in ``root``.
    add_from: tuple[Path, ...] = ()


class LimitSettings(_Frozen):
    """Caps on what one request may ask for."""

    max_tokens: int = Field(default=1024, gt=0)
    #: ``max_tokens`` of a request that names none (vLLM's own default).
    default_max_tokens: int = Field(default=16, gt=0)
    n: int = Field(default=8, gt=0)
    logprobs: int = Field(default=20, ge=0)
    #: Longest time a request may take, seconds; also the deadline of one that names none.
    deadline_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    #: Largest prompt or message list, bytes.
    max_prompt_bytes: int = Field(default=1 << 20, gt=0)
    #: Most sequences in the engine and in front of it; beyond, ``overloaded``.
    max_pending: int = Field(default=2048, gt=0)


class DoorSettings(_Frozen):
    """The BLS models ``lora_stream``, ``lora_infer`` and ``adapter_fusion``."""

    #: Calls in flight per department and door; beyond, ``overloaded``.
    max_in_flight_per_department: int = Field(default=256, gt=0)
    #: How often a door asks Triton whether its callers have gone, seconds. Each asking is a call
    #: into the server, about 0.1 ms of processor time: with 16 callers and 0.05 s it took 3 % of
    #: all.
    cancel_poll_s: float = Field(default=0.1, gt=0)


class StreamSettings(_Frozen):
    """Streamed answers."""

    #: Deltas of a stream that wait because Triton is behind go out as one. A response is then no
    #: longer one step of the engine.
    coalesce: bool = False


class Settings(_Frozen):
    """Everything that ``serving.yaml`` may say."""

    #: vLLM engine arguments, as in the official backend's ``model.json``, which they override.
    engine: dict[str, Any] = Field(default_factory=dict)
    #: Memory of each of the engine's workers, bytes: what does not fit it by the memory plan
    #: (60 % base model, 30 % slots) does not start. None: not looked at.
    memory_limit_bytes: int | None = Field(default=None, gt=0)
    adapters: AdapterSettings
    #: The policy file: departments, principals, access.
    policy: Path
    #: Free names for lora_ids: ``{risk_ctrl: fin_risk_v2}``, or with a share for a canary
    #: ``{risk_ctrl: {to: fin_risk_v2, canary: fin_risk_v3, share: 0.1}}``.
    aliases: dict[str, Route] = Field(default_factory=dict)
    signing: SigningSettings = SigningSettings()
    sources: SourceSettings = SourceSettings()
    tiers: TierSettings = TierSettings()
    limits: LimitSettings = LimitSettings()
    doors: DoorSettings = DoorSettings()
    streams: StreamSettings = StreamSettings()
    fusion: FusionSettings = FusionSettings()
    admission: AdmissionSettings = AdmissionSettings()
    breakers: BreakerSettings = BreakerSettings()
    observation: ObservationSettings = ObservationSettings()
    access: AccessSettings = AccessSettings()
    audit: AuditSettings = AuditSettings()
    #: Folder of the server's own state (staged adapters, keys, snapshots, audit).
    state_dir: Path

    @field_validator("aliases")
    @classmethod
    def _aliases(cls, aliases: dict[str, Route]) -> dict[str, Route]:
        for alias, route in aliases.items():
            check_alias(alias, route)
        return aliases

    @model_validator(mode="after")
    def _default_within_cap(self) -> Settings:
        if self.limits.default_max_tokens > self.limits.max_tokens:
            raise ValueError("limits.default_max_tokens is above limits.max_tokens")
        self.access.resolved(self.aliases)
        return self

    @property
    def run_dir(self) -> Path:
        """Folder of what lives as long as one server: the ticket key and the catalog snapshot."""
        return self.state_dir / "run"

    @property
    def audit_dir(self) -> Path:
        """Folder of the audit files and their key; it outlives the server."""
        return self.state_dir / "audit"

    @property
    def staged_dir(self) -> Path:
        """Folder of verified, content-addressed adapter copies."""
        return self.state_dir / "staged"


def resolved(raw: dict[str, Any], folder: Path, state_dir: Path | None) -> dict[str, Any]:
    """``raw`` with its paths made absolute against ``folder``."""

    def absolute(value: Any) -> Any:
        return folder / value if isinstance(value, str) and value else value

    raw = dict(raw)
    if isinstance(adapters := raw.get("adapters"), dict):
        raw["adapters"] = {**adapters, "root": absolute(adapters.get("root"))}
        if isinstance(folders := adapters.get("add_from"), list):
            raw["adapters"]["add_from"] = [absolute(path) for path in folders]
    if isinstance(signing := raw.get("signing"), dict):
        raw["signing"] = {**signing, "keys_file": absolute(signing.get("keys_file"))}
    fusion = raw.get("fusion")
    if isinstance(fusion, dict) and isinstance(auto := fusion.get("auto"), dict):
        raw["fusion"] = {**fusion, "auto": {**auto, "gate": absolute(auto.get("gate"))}}
    if isinstance(sources := raw.get("sources"), dict):
        file = absolute(sources.get("credentials_file"))
        raw["sources"] = {**sources, "credentials_file": file}
    raw["policy"] = absolute(raw.get("policy"))
    raw["state_dir"] = state_dir or absolute(raw.get("state_dir") or "state")
    if isinstance(engine := raw.get("engine"), dict):
        # A model may also be a Hub name; only what lies beside the file is taken as a path.
        local = {
            key: str(folder / value)
            for key in ("model", "tokenizer")
            if isinstance(value := engine.get(key), str) and (folder / value).is_dir()
        }
        raw["engine"] = {**engine, **local}
    return raw


def load(
    path: Path, *, state_dir: Path | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings in ``path``; ``state_dir`` and the environment's access override the file's.

    Raises:
        SettingsError: the file is missing, is not YAML, or has a wrong or unknown key.
    """
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"{path}: no such file; `python -m tools demo` makes one, or set {CONFIG_VARIABLE}"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: must be a mapping of settings at the top level")
    try:
        raw = overridden(raw, environment or {})
        return Settings.model_validate(resolved(raw, path.resolve().parent, state_dir))
    except ValidationError as error:
        raise SettingsError(explain(path, error)) from None


def explain(path: Path, error: ValidationError) -> str:
    """One line per wrong key: the file, the dotted key, what is wrong."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        cure = (
            " (unknown key: remove or correct it)" if problem["type"] == "extra_forbidden" else ""
        )
        lines.append(f"{path}: {key}: {problem['msg']}{cure}")
    return "\n".join(lines)


def from_environment() -> Settings:
    """The settings that the environment names, as every model of the repository reads them.

    Raises:
        SettingsError: ``LORA_SERVING_CONFIG`` is not set, or its file cannot be used.
    """
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        raise SettingsError(
            f"{CONFIG_VARIABLE} is not set: give it the absolute path of a serving.yaml "
            "(`python -m tools demo` makes one)"
        )
    state = os.environ.get(STATE_VARIABLE)
    return load(Path(path), state_dir=Path(state) if state else None, environment=os.environ)
