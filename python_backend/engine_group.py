"""Which engine a model belongs to, where one repository has several.

``tools render repository`` gives each group of models its own gate, engine and doors, and writes
into every ``config.pbtxt`` which group it is. Models without such a parameter are the only group.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from python_backend import settings
from python_backend.model_options import parameters
from python_backend.settings import Settings
from python_backend.ticket import ENGINE_AUDIENCE

#: Parameters of ``config.pbtxt``: the group's name, and its settings as a path from the model's
#: own folder.
GROUP, SETTINGS_FILE = "ENGINE_GROUP", "SETTINGS_FILE"
GATE = "lora_gate"
#: Folder of the groups' own states, in the server's state directory.
STATES = "engines"


@dataclasses.dataclass(frozen=True)
class EngineGroup:
    """What the models of one group have in common.

    ``server_run_dir`` is where the processes of all groups leave their records, so that whoever
    looks after the server looks in one place.
    """

    settings: Settings
    server_run_dir: Path
    gate: str = GATE
    engine: str = ENGINE_AUDIENCE

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> EngineGroup:
        """The group that the arguments of ``initialize`` name.

        Raises:
            SettingsError: its settings cannot be used; names the file, the key and the cure.
        """
        found = parameters(args)
        name = found.get(GROUP)
        if not name:
            config = settings.from_environment()
            return cls(config, config.run_dir)
        path = Path(os.path.normpath(Path(args["model_repository"], found.get(SETTINGS_FILE, ""))))
        state = os.environ.get(settings.STATE_VARIABLE)
        whole = settings.load(
            path, state_dir=Path(state) if state else None, environment=os.environ
        )
        # A group has its own keys, snapshot and staged copies: a ticket of one opens no other.
        own = whole.model_copy(update={"state_dir": whole.state_dir / STATES / name})
        return cls(own, whole.run_dir, member(GATE, name), member(ENGINE_AUDIENCE, name))


def member(model: str, group: str) -> str:
    """The name of a group's own copy of a model."""
    return f"{model}_{group}"
