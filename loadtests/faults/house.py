"""Where a server has what a fault spoils: its processes, its folders, its files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from python_backend.settings import Settings, SettingsError, load
from tools.serving import process
from tools.serving.state import PID_FILE

TRITON = "tritonserver"
ENGINE = "EngineCore"


class NotHere(Exception):
    """This fault cannot be injected on this machine or server; the text says what it takes."""


@dataclasses.dataclass(frozen=True)
class House:
    """One server that is started by ``tools serve``.

    Args:
        config: its serving.yaml.
        state: its state folder.
    """

    config: Path
    state: Path

    @property
    def settings(self) -> Settings:
        """What it was started with.

        Raises:
            NotHere: the file cannot be used any more.
        """
        try:
            return load(self.config, state_dir=self.state.absolute())
        except SettingsError as error:
            raise NotHere(str(error)) from None

    @property
    def triton(self) -> int:
        """The process of tritonserver, which is also its session.

        Raises:
            NotHere: no server was started from this folder.
        """
        path = self.state / "run" / PID_FILE
        try:
            return int(path.read_text("ascii"))
        except (OSError, ValueError):
            raise NotHere(f"{path} names no server") from None

    def pid(self, part: str) -> int:
        """A process of the server: ``TRITON``, ``ENGINE`` or the name of a model.

        Raises:
            NotHere: it does not run.
        """
        session = self.triton
        found = session if part == TRITON else process.part(session, part)
        if found not in process.session_members(session):
            raise NotHere(f"no process of {part} runs")
        assert found is not None
        return found

    def seen_by_server(self, path: Path) -> Path:
        """A path as the server sees it, which may have file systems mounted of its own."""
        return Path(f"/proc/{self.triton}/root") / path.absolute().relative_to("/")
