"""The real engine and the real service in this process, with callers that keep time.

What is left out is Triton and the gate: the same queue, engine and event loop as in the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from python_backend import ticket as tickets
from python_backend.adapters.versions import Versions
from python_backend.admission import Admission, Limits, Share
from python_backend.admission_settings import AdmissionSettings
from python_backend.cores import usable_cores
from python_backend.engine import orphans
from python_backend.engine.arguments import engine_arguments, has_gpu, prepare_process
from python_backend.engine.async_llm import AsyncLLMEngine
from python_backend.engine.base import Engine, EngineInfo
from python_backend.errors import ServingError
from python_backend.messages import Answer, EngineRequest
from python_backend.service import Call, GenerateService
from python_backend.ticket import Part, Ticket, sha256_hex, sign
from tools.bench.server import engine_settings
from tools.simulate.engine import Job

SEATS, SLOTS, RESERVE = 16, 4, AdmissionSettings().reserve_seats
_KEY, _BOOT = bytes(32), "bench"
_UNBOUNDED = 1_000_000
#: Words of a prompt; each is one token of the demo's model.
_WORD = " the"


@dataclasses.dataclass
class Timing:
    """One request, as its caller saw it. Seconds of ``time.perf_counter``."""

    job: Job
    sent_s: float
    times_s: list[float] = dataclasses.field(default_factory=list)
    error: ServingError | None = None

    @property
    def ttft_s(self) -> float:
        """Time to its first token."""
        return self.times_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between its tokens."""
        return [b - a for a, b in itertools.pairwise(self.times_s)]


class _Ear:
    """A responder that keeps time."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def accept(self) -> None:
        pass

    def send(self, answer: Answer, returns: tuple[str, ...]) -> None:
        tokens = sum(part.num_tokens for part in answer.sequences)
        self._timing.times_s += [time.perf_counter()] * tokens

    def fail(self, error: ServingError) -> None:
        self._timing.error = error

    def done(self) -> None:
        pass


class EngineHouse:
    """A started engine; ``serve`` puts an admission in front of it.

    Args:
        adapter: the folder of adapter so and so; all may have the same: content makes no
            difference to cost, names and ids do.
    """

    def __init__(
        self,
        engine: AsyncLLMEngine,
        info: EngineInfo,
        adapter: Callable[[int], Path],
        slots: int = SLOTS,
    ) -> None:
        self.engine, self.info, self.slots = engine, info, slots
        #: May be changed until an adapter is asked for.
        self.adapter = adapter
        self._versions = Versions()
        self._uids = itertools.count()
        self._digests: dict[int, str] = {}
        self._admissions: list[Admission] = []
        engine.on_step = self._stepped

    def _stepped(self) -> None:
        for admission in self._admissions:
            admission.stepped()

    def serve(
        self,
        *,
        open_door: bool = False,
        shares: Mapping[str, Share] | None = None,
        engine: Engine | None = None,
    ) -> Serving:
        """A service; with ``open_door`` the engine gets everything at once, as without us.

        Args:
            engine: what stands in front of the engine, if anything does.
        """
        if open_door:
            limits = Limits(
                _UNBOUNDED,
                _UNBOUNDED,
                max_pending=_UNBOUNDED,
                max_pending_per_department=_UNBOUNDED,
            )
        else:
            limits = AdmissionSettings().limits(seats=SEATS, slots=self.slots, max_pending=2048)
        admission = Admission(limits, shares)
        self._admissions.append(admission)
        service = GenerateService(
            engine or self.engine, self.info, self._versions, admission, key=_KEY, boot_id=_BOOT
        )
        return Serving(self, service, admission)

    def call(self, job: Job) -> Call:
        """The call that a gate would make of a job."""
        prompt = "Say" + _WORD * (job.tokens - 1)
        sampling = {
            "max_tokens": job.output,
            "min_tokens": job.output,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        body = EngineRequest(sampling, stream=True).to_json()
        now = tickets.boottime_ns()
        parts = () if job.adapter is None else (self._part(job.adapter),)
        ticket = Ticket(
            boot_id=_BOOT,
            audience=tickets.ENGINE_AUDIENCE,
            operation="generate",
            uid=f"bench{next(self._uids)}",
            department=job.department,
            principal="bench",
            parts=parts,
            prompt_sha256=sha256_hex(prompt.encode()),
            request_sha256=sha256_hex(body.encode()),
            deadline_ns=now + 3600 * 10**9,
            expires_ns=now + 60 * 10**9,
        )
        return Call(prompt.encode(), body.encode(), sign(ticket, _KEY))

    def _part(self, adapter: int) -> Part:
        if adapter not in self._digests:
            digest = hashlib.sha256(str(adapter).encode()).hexdigest()
            self._versions.register(f"bench_a{adapter}_v1", digest, self.adapter(adapter))
            self._digests[adapter] = digest
        return Part(f"bench_a{adapter}_v1", self._digests[adapter])


class Serving:
    """One service on the engine, and what its callers saw."""

    def __init__(self, house: EngineHouse, service: GenerateService, admission: Admission) -> None:
        self._house, self.service, self.admission = house, service, admission
        #: Every request, whatever has become of it.
        self.seen: list[Timing] = []

    async def ask(self, job: Job) -> Timing:
        """One request, to its end. Raises its error, if it ends in one."""
        call = self._house.call(job)
        timing = Timing(job, time.perf_counter())
        self.seen.append(timing)
        await self.service.handle(call, _Ear(timing))
        if timing.error is not None:
            raise timing.error
        return timing

    async def stream(self, jobs: Iterable[Job]) -> None:
        """One request after the other."""
        for job in jobs:
            await self.ask(job)

    @asynccontextmanager
    async def crowd(self, streams: Iterable[Iterable[Job]]) -> AsyncIterator[None]:
        """Streams that go on for as long as the block runs, and are cancelled then."""
        tasks = [asyncio.create_task(self.stream(jobs)) for jobs in streams]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def tokens(self, department: str, began_s: float, ended_s: float) -> int:
        """Tokens that a department got between two moments."""
        return sum(
            began_s <= at < ended_s
            for timing in self.seen
            if timing.job.department == department
            for at in timing.times_s
        )


@asynccontextmanager
async def engine_house(
    demo: Path, known: int = 64, slots: int = SLOTS
) -> AsyncIterator[EngineHouse]:
    """An engine over the demo's model, with 16 seats and the reserve's.

    Args:
        known: adapters that its host cache is to have room for.
    """
    raw = {
        **engine_settings(demo),
        "max_num_seqs": SEATS,
        "max_loras": slots,
    }
    arguments = engine_arguments(raw, known, RESERVE)
    orphans.claim()
    prepare_process(arguments, usable_cores(), gpu=has_gpu())
    marker = sorted(json.loads((demo / "markers.json").read_text("utf-8")))[0]
    with tempfile.TemporaryDirectory() as state:
        engine = AsyncLLMEngine(arguments, Path(state) / "failures")
        try:
            info = await engine.start()
            folder = (demo / "adapters" / marker).resolve()
            yield EngineHouse(engine, info, lambda _: folder, slots)
        finally:
            await engine.stop()


def jobs(department: str, adapter: int | None, *, tokens: int, output: int) -> Iterable[Job]:
    """The same request over and over."""
    return itertools.repeat(Job(0.0, department, adapter, tokens, output))
