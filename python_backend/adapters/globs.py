"""Globs over lora_ids, as policy and settings write them: one rule for all of them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_GLOB = re.compile(r"[a-z0-9_*?\[\]!-]{1,128}", re.ASCII)


def checked(globs: tuple[str, ...]) -> tuple[str, ...]:
    """``globs``, if each can match a lora_id.

    Raises:
        ValueError: one cannot; names it.
    """
    for glob in globs:
        if not _GLOB.fullmatch(glob):
            raise ValueError(f"{glob!r} can match no lora_id; write a glob such as fin_*")
    return globs


#: A settings field of globs.
Globs = Annotated[tuple[str, ...], AfterValidator(checked)]
