"""Settings of signatures: a section of ``serving.yaml``.

Which adapters must be signed stands here and not in the policy file: the engine's process verifies,
once, before it serves an adapter, and reads these settings at its start; the policy is read by the
gates, again whenever it changes, and a change of it must not undo a check.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

from python_backend.adapters.globs import Globs


class SigningSettings(BaseModel):
    """Who may vouch for adapters, and which need somebody who does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The signing keys, mode 0600; without, nothing is verified.
    keys_file: Path | None = None
    #: Globs over lora_ids: those are served only with a good signature.
    require: Globs = ()

    @model_validator(mode="after")
    def _keys_for_what_is_required(self) -> SigningSettings:
        if self.require and self.keys_file is None:
            raise ValueError("require without keys_file: nothing could be verified; name the file")
        return self
