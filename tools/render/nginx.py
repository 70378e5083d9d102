"""A whole ``nginx.conf`` for the gateway of a fleet. Pure: the same fleet gives the same text."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2

from tools.render.fleet import Fleet, Gateway, Group, Server
from tools.render.names import pattern
from tools.render.reading import Problem

#: Headers that other systems read as who a caller is, or that Triton reads as who may restrict it.
#: For gRPC alone: over HTTP no header passes that is not listed in the template.
STRIPPED = (
    "Cookie",
    "Forwarded",
    "Proxy-Authorization",
    "Remote-User",
    "Triton-Grpc-Protocol-Admin-Key",
    "X-Authenticated-User",
    "X-Credential",
    "X-Department",
    "X-Forwarded-Access-Token",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-Email",
    "X-Forwarded-For",
    "X-Forwarded-Groups",
    "X-Forwarded-Preferred-Username",
    "X-Forwarded-User",
    "X-Principal",
    "X-Real-Ip",
    "X-Remote-User",
    "X-Tenant",
    "X-User",
)
#: Seconds that the gateway waits longer than the servers do, so that the servers' word counts.
PATIENCE_S = 10
#: Parts of the hash's range; each has one server for its home.
_PARTS = 200


def problems(fleet: Fleet) -> list[Problem]:
    """What of the fleet keeps it from having a gateway."""
    if fleet.gateway is None:
        return [((), "no section gateway; write one, or render something else")]
    return [
        (("groups", name, "servers"), "has no members: list the servers of the group")
        for name, group in fleet.groups.items()
        if not group.servers
    ]


def render(fleet: Fleet) -> str:
    """The configuration; the fleet has no ``problems``."""
    gateway = fleet.gateway
    assert gateway is not None  # noqa: S101 - see above
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - no HTML; what goes in is checked by its type
    )
    environment.globals["limits"] = lambda indent: _limits(gateway, indent)
    groups = sorted(fleet.groups.items())
    return environment.get_template("nginx.conf.j2").render(
        gateway=gateway,
        wait_s=gateway.deadline_s + PATIENCE_S,
        patterns=_patterns(fleet),
        own_engines=[name for name, group in groups if group.engine is not None],
        departments=sorted(gateway.rates.departments.items()),
        homes=[
            (name, shares(group.servers)) for name, group in groups if _has_homes(group, gateway)
        ],
        upstreams=_upstreams(fleet, gateway),
        doors="|".join(sorted(gateway.models)),
        stripped=STRIPPED,
    )


def _patterns(fleet: Fleet) -> list[tuple[str, str]]:
    """What ``x-lora-id`` may begin with, and the group it then means; aliases first."""
    groups = sorted(fleet.groups.items())
    aliases = [(re.escape(alias), name) for name, group in groups for alias in group.aliases]
    globs = [(pattern(glob), name) for name, group in groups for glob in group.adapters]
    return sorted(aliases) + globs


def _has_homes(group: Group, gateway: Gateway) -> bool:
    return gateway.balance == "lora_id" and len(group.servers) > 1


def shares(servers: Sequence[Server]) -> list[tuple[str, int]]:
    """The range of hashes, in percent, and the server each is at home with, as a position.

    Rendezvous hashing: each part goes to the server whose hash with it is the highest, so a new
    server takes its share from all others, and nothing else moves.
    """
    homes = [
        max(range(len(servers)), key=lambda at: _draw(part, servers[at])) for part in range(_PARTS)
    ]
    runs = [(at, len(list(run))) for at, run in itertools.groupby(homes)]
    *some, (last, _) = runs
    return [(f"{length * 100 / _PARTS:g}%", at) for at, length in some] + [("*", last)]


def _draw(part: int, server: Server) -> bytes:
    return hashlib.sha256(f"{part} {server.host}:{server.http}".encode()).digest()


def _upstreams(fleet: Fleet, gateway: Gateway) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Each upstream's name, its servers, and whether one is only there in place of another.

    ``_any`` has the servers of all groups, each once.
    """
    found: list[tuple[str, list[tuple[str, bool]]]] = []
    for kind in ("http", "grpc"):
        every: dict[str, None] = {}
        for name, group in sorted(fleet.groups.items()):
            members = [f"{server.host}:{getattr(server, kind)}" for server in group.servers]
            every |= dict.fromkeys(members)
            if _has_homes(group, gateway):
                for at, home in enumerate(members):
                    others = [(address, True) for address in members if address != home]
                    found.append((f"{kind}_{name}_{at}", [(home, False), *others]))
            else:
                found.append((f"{kind}_{name}", [(address, False) for address in members]))
        found.append((f"{kind}__any", [(address, False) for address in every]))
    return found


def _limits(gateway: Gateway, indent: int) -> str:
    """The limits of a call that generates: each zone counts only whom its key names."""
    rates = gateway.rates
    zones = [(f"department_{name}", rate) for name, rate in sorted(rates.departments.items())]
    zones += [("others", rates.default), ("addresses", rates.address)]
    lines = (f"limit_req zone={name} burst={rate.burst} nodelay;" for name, rate in zones)
    return "".join(f"\n{' ' * indent}{line}" for line in lines)
