"""The server that a load goes to: one of its own, or one that is there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from loadtests.cast import Cast, Member, read_cast
from loadtests.faults import room
from loadtests.house import KEYS, SPARES, build_house
from loadtests.judge import outcome
from loadtests.problem import LoadProblem
from loadtests.results import Sample
from tools.bench.server import running

_ADDRESS = re.compile(r"([^:]+):(\d+),(\d+),(\d+)")
_LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Target:
    """A server. ``folder`` holds keys and spares; ``pid`` None: not ours to look at."""

    http: str
    grpc: str
    metrics: str
    folder: Path
    cast: Cast
    pid: int | None = None
    state: Path | None = None
    #: A look at it before anybody had asked it anything, at a time since the epoch.
    untouched: Sample | None = None

    @property
    def keys_file(self) -> Path:
        """JSON: API keys by department."""
        return self.folder / KEYS

    @property
    def spares(self) -> Path:
        """Folder of markers that the server may add from."""
        return self.folder / SPARES

    def keys(self) -> dict[str, str]:
        """API keys by department."""
        found: dict[str, str] = json.loads(self.keys_file.read_text("utf-8"))
        return found

    def check(self) -> None:
        """Asks one adapter of each department for a word.

        Raises:
            LoadProblem: nobody is there, or it does not know keys or adapters of the folder.
        """
        keys = self.keys()
        for department, members in self.cast.members.items():
            self._check_one(members[0], keys[department])

    def _check_one(self, member: Member, key: str) -> None:
        body = {
            "text_input": "Hi",
            "credential": key,
            "lora_id": member.lora_id,
            "max_tokens": 1,
            "exclude_input_in_output": True,
        }
        try:
            answer = httpx.post(
                f"http://{self.http}/v2/models/lora_infer/generate", json=body, timeout=_LIMIT_S
            )
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise LoadProblem(
                f"no server of ours at {self.http} ({error}): is it up, and is this its HTTP port?"
            ) from None
        if "error" in found:
            code = outcome(str(found["error"]))
            cure = {
                "unauthenticated": f"its policy does not know the key {member.department!r} of "
                f"{self.keys_file}",
                "not_found": f"{member.lora_id} of {self.folder} is not for the key "
                f"{member.department!r} there",
            }.get(code, str(found["error"])[:200])
            raise LoadProblem(f"the server at {self.http} answers {code}: {cure}")
        if str(found.get("text_output", "")).strip() != member.word:
            raise LoadProblem(
                f"the server at {self.http}: {member.lora_id} does not say {member.word!r}; are "
                f"its adapters those of {self.folder}?"
            )


@contextlib.contextmanager
def started(
    demo: Path,
    markers: Mapping[str, int],
    spares: int,
    settings: Mapping[str, Any],
    protections: Mapping[str, bool],
    logs: Path,
    say: Callable[[str], None],
    *,
    flags: Sequence[str] = (),
    in_room: bool = False,
) -> Iterator[Target]:
    """A server of its own; nothing of it is left afterwards but its log in ``logs``.

    Args:
        say: hears when it starts and when it is ready.
        flags: more of ``tools serve``.
        in_room: whether it has small file systems of its own (``faults.room``).

    Raises:
        LoadProblem: the demo does not do.
        RuntimeError: it does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        house = folder / "house"
        house.mkdir()
        cast = build_house(house, demo.resolve(), markers, spares, settings, protections)

        def around(command: list[str]) -> list[str]:
            return room.inside(command, folder / "state" / "audit") if in_room else command

        try:
            say("starting a server …")
            with running(house, folder, flags=flags, around=around) as server:
                say(f"ready after {server.start_s:.0f} s")
                addresses = (server.http, server.grpc, server.metrics)
                yield Target(*addresses, house, cast, server.pid, server.state)
        finally:
            for log in (folder / "serve.log", *(folder / "state" / "logs").glob("*.log")):
                with contextlib.suppress(OSError):
                    shutil.copyfile(log, logs / log.name)


def attached(server: str, folder: Path, markers: Mapping[str, int], spares: int) -> Target:
    """A server that is there, started with the keys, policy and adapters of ``folder``.

    Raises:
        LoadProblem: the address cannot be read, or the folder lacks what the scenario needs.
    """
    parts = _ADDRESS.fullmatch(server)
    if parts is None:
        raise LoadProblem(f"--server {server}: must be HOST:HTTP,GRPC,METRICS, the three ports")
    cast = read_cast(folder)
    found = {name: len(members) for name, members in cast.members.items()}
    if len(cast.spares) < spares or any(
        found.get(name, 0) < count for name, count in markers.items()
    ):
        needs = ", ".join(f"{name} {count}" for name, count in markers.items())
        has = ", ".join(f"{name} {count}" for name, count in found.items())
        raise LoadProblem(
            f"{folder}: the scenario needs departments with markers ({needs}) and {spares} spares; "
            f"it has {has} and {len(cast.spares)}. `python -m loadtests house` makes a folder to "
            f"serve; without --server a server is started"
        )
    used = {name: cast.of(name, count) for name, count in markers.items()}
    cast = Cast(used, cast.spares[:spares])
    host, http, grpc, metrics = parts.groups()
    return Target(f"{host}:{http}", f"{host}:{grpc}", f"{host}:{metrics}", folder, cast)
