"""``fleet.yaml``: traffic groups, the gateway before them, and the engines that serve them.

A file of its own, beside ``serving.yaml``: that one is about a server's engine, this one about who
is sent to which server, and a gateway's machine need not know the former.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from python_backend.adapters import naming
from python_backend.adapters.globs import Globs

#: Models that callers may reach. The gate, the engine and the operators' door are not among them.
Door = Literal["lora_generate", "lora_stream", "lora_infer", "adapter_fusion"]
PUBLIC: tuple[Door, ...] = ("lora_generate", "lora_stream", "lora_infer", "adapter_fusion")

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9a-fA-F:]+\]", re.ASCII)
_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*", re.ASCII)
_GROUP = re.compile(r"[a-z][a-z0-9]{0,15}", re.ASCII)
_DEPARTMENT = re.compile(r"[a-z][a-z0-9]{1,15}", re.ASCII)


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    """Lets a text through that cannot end the directive of nginx it will stand in."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} is no {what}")
        return text

    return AfterValidator(check)


def _alias(text: str) -> str:
    if not naming.is_alias(text):
        raise ValueError(f"{text!r} cannot be an alias")
    return text


Host = Annotated[str, _matching(_HOST, "host name or address")]
#: Not a ``Path``: the file lies on the gateway's machine, not on the one that renders.
AbsolutePath = Annotated[
    str, _matching(_PATH, "absolute path of plain ASCII letters, digits and ._/+@-")
]
GroupName = Annotated[str, _matching(_GROUP, "group's name: up to 16 of a-z and 0-9")]
Department = Annotated[str, _matching(_DEPARTMENT, "department, the first part of a lora_id")]
Alias = Annotated[str, AfterValidator(_alias)]
Port = Annotated[int, Field(gt=0, lt=65536)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Server(_Frozen):
    """One Triton server, as the gateway reaches it."""

    host: Host
    http: Port = 8000
    grpc: Port = 8001


class GroupEngine(_Frozen):
    """An engine of its own for the group, in a repository that ``render repository`` makes."""

    #: Devices by number, as ``nvidia-smi`` lists them; none on a machine without a GPU.
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()
    #: Settings that differ from ``serving.yaml``'s, with its keys.
    settings: dict[str, Any] = Field(default_factory=dict)


class Group(_Frozen):
    """Adapters whose requests go to the same servers."""

    #: Globs over lora_ids; no adapter may belong to two groups.
    adapters: Globs = Field(min_length=1)
    #: Aliases (serving.yaml) that callers may write in ``x-lora-id``.
    aliases: tuple[Alias, ...] = ()
    servers: tuple[Server, ...] = ()
    engine: GroupEngine | None = None


class Tls(_Frozen):
    """The gateway's certificate with its chain, and its key (PEM)."""

    certificate: AbsolutePath
    key: AbsolutePath


class Rate(_Frozen):
    """Requests that one credential, or one address, may send."""

    per_minute: int = Field(gt=0)
    #: So many may come at once before the rate is enforced.
    burst: int = Field(default=200, ge=0)


class Rates(_Frozen):
    """Limits in front of the servers' own, which know departments by their keys."""

    #: Of each credential, for adapters of a department that is not named below.
    default: Rate = Rate(per_minute=6000)
    #: Of each credential, by the department that owns the adapter.
    departments: dict[Department, Rate] = Field(default_factory=dict)
    #: Of each address, whatever it sends: who tries many keys meets this one.
    address: Rate = Rate(per_minute=30000, burst=1000)


class Folders(_Frozen):
    """Where nginx writes; the defaults are Debian's."""

    run: AbsolutePath = "/run"
    log: AbsolutePath = "/var/log/nginx"
    temp: AbsolutePath = "/var/lib/nginx"


class Gateway(_Frozen):
    """nginx, as ``render nginx`` sets it up."""

    server_name: Host
    address: Host = "0.0.0.0"  # noqa: S104 - a gateway is there to be reached
    http_port: Port = 8443
    grpc_port: Port = 8444
    #: No default: ``null``, plain text, is for a gateway behind something that ends TLS.
    tls: Tls | None
    models: tuple[Door, ...] = Field(default=PUBLIC, min_length=1)
    #: The group of requests without ``x-lora-id``, or with a name of no group; none: refused.
    default_group: GroupName | None = None
    #: ``round_robin`` takes an adapter's requests to every server of the group in turn.
    balance: Literal["lora_id", "round_robin"] = "lora_id"
    rates: Rates = Rates()
    #: Longest time an answer may take, seconds: not below the servers' ``limits.deadline_s``.
    deadline_s: int = Field(default=300, gt=0)
    #: How long to wait for a server to take a connection, seconds.
    connect_s: int = Field(default=2, gt=0)
    #: How long a server is left alone that did not take a connection, seconds.
    down_s: int = Field(default=10, gt=0)
    #: Largest request, bytes: ``limits.max_prompt_bytes`` as JSON may write it.
    max_body_bytes: int = Field(default=8 << 20, gt=0)
    folders: Folders = Folders()


class Fleet(_Frozen):
    """Everything that ``fleet.yaml`` may say."""

    groups: dict[GroupName, Group] = Field(min_length=1)
    gateway: Gateway | None = None
    #: The settings that all engines of ``render repository`` share; relative to this file.
    serving: Path = Path("serving.yaml")
