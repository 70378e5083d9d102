"""What is to be sent in a run, worked out before it starts. The same plan is the same load.

``arrivals`` are open: each is sent when it is due, whatever has become of those before it, so that
a queue is seen by those who wait in it. ``loops`` are closed: a user of locust sends the calls of
its loop one after the other, and ``shape`` says how many users there are when.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from loadtests.results import Kind, User
from loadtests.shapes import Shape, Soak

#: Beyond the server's own deadline a caller waits so much longer, seconds.
GRACE_S = 5.0
#: A file beside the plan, written when the load begins: seconds since the epoch.
ZERO = "zero"
Text = Annotated[str, Field(min_length=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(_Frozen):
    """One request and what should come of it."""

    #: When it is due, seconds since the start; of a loop's call without meaning.
    at: float = 0.0
    user: User = "grpc_stream"
    #: Whose key it carries.
    department: str
    kind: Kind = "good"
    #: None: the base model.
    lora_id: str | None
    #: What the adapter says, and nothing else; None: not known.
    word: str | None = None
    prompt: Text
    #: Tokens of the answer, exactly.
    tokens: int = Field(gt=0)
    #: Of a cancel: after how many pieces the caller leaves.
    leave_after: int = 1
    #: Inputs and parameters that make it malformed.
    inputs: dict[str, str] = {}
    parameters: dict[str, int | bool | str] = {}

    @property
    def expected(self) -> frozenset[str]:
        """The outcomes that are as they should be."""
        return _EXPECTED[self.kind]


_EXPECTED: dict[str, frozenset[str]] = {
    "good": frozenset({"ok"}),
    # One that is answered sooner than its caller leaves is as good.
    "cancel": frozenset({"cancelled", "ok"}),
    "forbidden": frozenset({"not_found", "unauthenticated"}),
    "malformed": frozenset({"invalid_argument", "not_found"}),
}


class Act(_Frozen):
    """What an operator does while the load runs: ``tools admin`` add, update or remove."""

    at: float
    what: Literal["add", "update", "remove"]
    lora_id: str
    #: The marker in the folder of spares whose weights it gets.
    marker: str | None = None


class Load(_Frozen):
    """The part of a plan that a scenario decides."""

    seconds: float = Field(gt=0)
    arrivals: tuple[Call, ...] = ()
    loops: tuple[tuple[Call, ...], ...] = ()
    shape: Shape = Soak(users=0)
    acts: tuple[Act, ...] = ()
    #: Until then the load is light: what is measured before is compared with what comes after.
    calm_s: float = 0.0

    @property
    def digest(self) -> str:
        """sha256 of all of it, hex."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class Plan(_Frozen):
    """A load and where it goes."""

    load: Load
    #: ``host:port``.
    http: str
    grpc: str
    #: JSON: the API key of each department.
    keys_file: Path
    #: What any adapter of the server says: none of it is an answer of the base model.
    words: frozenset[str]
    #: Longest time for one answer, seconds.
    patience_s: float = Field(gt=0)
    #: Locust's worker processes that share the load.
    workers: int = Field(default=1, gt=0)

    def keys(self) -> dict[str, str]:
        """The API keys by department."""
        found: dict[str, str] = json.loads(self.keys_file.read_text("utf-8"))
        return found

    def share(self, worker: int) -> tuple[Call, ...]:
        """The arrivals that one of the workers sends; together they send all."""
        return self.load.arrivals[worker :: self.workers]
