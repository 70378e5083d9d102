"""What a run of a scenario leaves in its folder: types, and how they are read and written.

``run.json`` says what was run and how it came out, ``requests.jsonl`` holds a line for each
request, ``samples.jsonl`` one for each second, ``faults.jsonl`` one for each injected fault,
``changes.jsonl`` one for each thing that an operator did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

RUN, REQUESTS, SAMPLES, FAULTS = "run.json", "requests.jsonl", "samples.jsonl", "faults.jsonl"
CHANGES = "changes.jsonl"
#: One worker's part of the requests, until they are merged.
PART = "requests.{worker}.jsonl"

#: Through which door a request went.
User = Literal["grpc_stream", "http_stream", "unary"]
#: What a request was meant to meet with.
Kind = Literal["good", "forbidden", "malformed", "cancel"]
#: Whether the answer's words and ``lora_served`` were the asked adapter's.
Route = Literal["right", "wrong", "unchecked"]


class ResultsProblem(Exception):
    """A results folder that cannot be used; the text names the file and what is wrong."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(_Frozen):
    """One request. Times are seconds: ``t`` and ``sent`` since the start of the run."""

    #: When it was due; it may have been ``sent`` later.
    t: float
    sent: float
    user: User
    department: str
    kind: Kind
    #: What was asked for; None: the base model.
    lora_id: str | None
    #: ``lora_served`` of the answer.
    served: str | None
    #: ``ok``, ``cancelled``, one of our error codes, or ``transport``: no answer of ours.
    outcome: str
    #: From ``sent`` to the first token; None where none came.
    ttft: float | None
    #: Median and longest time between two tokens; empty with fewer than two.
    gaps: tuple[float, ...]
    #: From ``sent`` to the end.
    total: float
    #: Pieces of text that came, one a token on a stream.
    tokens: int
    route: Route
    #: ``request_uid`` of the answer, by which the audit knows it.
    uid: str | None = None


class Sample(_Frozen):
    """One look at the server and its machine. ``t``: seconds since the start of the run."""

    t: float
    #: By role of the process (``tritonserver``, ``stub of vllm_lora``, …): bytes resident,
    #: open files, threads.
    rss: dict[str, int]
    fds: dict[str, int]
    threads: dict[str, int]
    #: Bytes of /dev/shm that the server's processes have mapped.
    shm: int
    #: Series on the metrics page; 0 where it does not answer.
    series: int
    #: Chosen gauges and counters by ``name{label="x"}``; None: the server did not answer.
    metrics: dict[str, float] | None


class Fault(_Frozen):
    """One injected fault. Seconds; ``t`` since the start of the run."""

    t: float
    fault: str
    target: str
    #: Until the first good answer after it; None: none came.
    healed: float | None
    #: For how long nobody got a good answer; None where nobody was hurt.
    down: float | None


class Change(_Frozen):
    """One command of an operator. ``t``: when it was given, seconds since the start of the run."""

    t: float
    what: Literal["add", "update", "remove"]
    lora_id: str
    #: Until the server had acknowledged it.
    seconds: float
    #: What the server said instead; None: it was done.
    error: str | None


class Verdict(_Frozen):
    """One line of the budget against what was measured, over so many samples."""

    name: str
    measured: float | None
    limit: float
    ok: bool
    samples: int


class Machine(_Frozen):
    """Where it ran."""

    cpus: int
    memory_bytes: int
    gpu: str | None


class Run(_Frozen):
    """A run as a whole."""

    format: Literal[1] = 1
    scenario: str
    configuration: str
    options: dict[str, Any]
    #: ISO 8601, UTC.
    started: str
    #: How long the load lasted, seconds.
    seconds: float
    machine: Machine
    #: Packages and the like, by name.
    versions: dict[str, str]
    #: Settings of the server that are not the demo's, nested as in ``serving.yaml``.
    settings: dict[str, Any]
    #: Whether each of our protections was on.
    protections: dict[str, bool]
    #: sha256 of the arrivals: the same trace has the same.
    trace: str
    budget: tuple[Verdict, ...]
    ok: bool


Line = TypeVar("Line", Request, Sample, Fault, Change)


def write_run(folder: Path, run: Run) -> None:
    """Writes ``run.json``; it appears whole."""
    part = folder / f"{RUN}.part"
    part.write_text(run.model_dump_json(indent=1) + "\n", "utf-8")
    part.replace(folder / RUN)


def read_run(folder: Path) -> Run:
    """``run.json`` of a results folder.

    Raises:
        ResultsProblem: it is missing or is not one of ours.
    """
    try:
        return Run.model_validate_json((folder / RUN).read_bytes())
    except OSError as error:
        raise ResultsProblem(
            f"{folder / RUN}: {error.strerror}; is this the folder of a finished run?"
        ) from None
    except ValidationError as error:
        raise ResultsProblem(f"{folder / RUN}: {_first(error)}") from None


def append(file: TextIO, line: BaseModel) -> None:
    """Writes one line at once, so that a killed run leaves what it saw."""
    file.write(line.model_dump_json() + "\n")
    file.flush()


def read_lines(path: Path, kind: type[Line]) -> Iterator[Line]:
    """The lines of one of the files; none where the file is missing.

    A last line without its end, as a killed writer leaves it, is passed over.

    Raises:
        ResultsProblem: a line is not what it should be.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith("\n"):
                return
            try:
                yield kind.model_validate_json(text)
            except ValidationError as error:
                raise ResultsProblem(f"{path}:{number}: {_first(error)}") from None


def requests(folder: Path) -> Iterator[Request]:
    """The requests of a run, by when they were due."""
    return read_lines(folder / REQUESTS, Request)


def samples(folder: Path) -> Iterator[Sample]:
    """What was sampled during a run, by time."""
    return read_lines(folder / SAMPLES, Sample)


def faults(folder: Path) -> Iterator[Fault]:
    """The faults of a run, by time; none where none were injected."""
    return read_lines(folder / FAULTS, Fault)


def changes(folder: Path) -> Iterator[Change]:
    """What an operator did during a run, by time; none where there was none."""
    return read_lines(folder / CHANGES, Change)


def merge(folder: Path) -> int:
    """Puts the workers' parts into ``requests.jsonl``, by when they were due; how many lines."""
    parts = sorted(folder.glob(PART.format(worker="*")))
    found = [line for part in parts for line in read_lines(part, Request)]
    found.sort(key=lambda request: (request.t, request.sent))
    write_lines(folder / REQUESTS, found)
    for part in parts:
        part.unlink()
    return len(found)


def write_lines(path: Path, lines: Iterable[BaseModel]) -> None:
    """Writes a file of lines anew."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line.model_dump_json() + "\n" for line in lines)


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else json.dumps(problem["msg"])
