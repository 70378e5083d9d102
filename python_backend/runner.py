"""A request that has its place in the queue, on its way through the engine to its final answer.

Leases first, so that nothing it needs goes while it waits; then its tokens, its turn, the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from python_backend import answers, prompts
from python_backend.adapters.naming import BASE
from python_backend.admission import Admission, Place
from python_backend.admission.together import Together
from python_backend.auto_settings import DistributionSettings
from python_backend.completion import Responder
from python_backend.engine.base import Engine, EngineInfo, Job, Step, Version
from python_backend.errors import Unavailable
from python_backend.fusion import lockstep, recipe
from python_backend.fusion.distribution import DISTRIBUTION
from python_backend.fusion.lockstep import Stream
from python_backend.leasing import Leases
from python_backend.messages import EngineRequest
from python_backend.ticket import Ticket


class Runner:
    """Runs requests on the engine's event loop.

    Args:
        key: the server's ticket key, which the salts of the prefix cache are made with.
        clock_ns: CLOCK_BOOTTIME, nanoseconds.
        distribution: bounds of the mode of that name.
    """

    def __init__(
        self,
        engine: Engine,
        info: EngineInfo,
        leases: Leases,
        admission: Admission,
        distribution: DistributionSettings | None = None,
        *,
        key: bytes,
        clock_ns: Callable[[], int],
    ) -> None:
        self._engine, self._info, self._leases = engine, info, leases
        self._key, self._clock_ns = key, clock_ns
        self._together = Together(admission)
        self._distribution = distribution or DistributionSettings()
        # One prompt of a department at a time: the tokenizer's thread is no queue of its own.
        self._encoding: dict[str, asyncio.Lock] = {}

    async def run(
        self,
        prompt_bytes: bytes,
        request: EngineRequest,
        ticket: Ticket,
        place: Place,
        responder: Responder,
    ) -> None:
        """Runs a request to its final answer.

        Raises:
            ServingError: whatever stands against it.
        """
        prompt = prompt_bytes.decode("utf-8")
        if request.fusion == DISTRIBUTION:
            await self._mixed(prompt, request, ticket, place, responder)
            return
        async with self._leases.of(ticket) as version:
            ids, most = await self._encoded(prompt, request, ticket)
            left_s = (ticket.deadline_ns - self._clock_ns()) / 1e9
            await place.enter(version.int_id if version else None, len(ids), most, left_s)
            job = self._job(ticket, ids, request, version)
            frame = _frame(prompt, request, ticket, version.name if version else BASE)
            await self._answer(self._engine.generate(job), job, frame, [place], responder)

    async def _mixed(
        self,
        prompt: str,
        request: EngineRequest,
        ticket: Ticket,
        place: Place,
        responder: Responder,
    ) -> None:
        """Mode ``distribution``: every part in a session of its own, in lockstep."""
        with self._leases.each(ticket.parts) as parts:
            ids, most = await self._encoded(prompt, request, ticket)
            left_s = (ticket.deadline_ns - self._clock_ns()) / 1e9
            adapters = [version.int_id if version else None for version, _ in parts]
            async with self._together.places(place, adapters, len(ids), most, left_s) as places:
                streams = [
                    Stream(self._job(ticket, ids, request, version, f"-{n}"), weight)
                    for n, (version, weight) in enumerate(parts)
                ]
                known = self._distribution.candidates
                steps = lockstep.decode(self._engine, self._info, streams, known)
                job = Job(ticket.uid, ids, request, None, "")
                frame = _frame(prompt, request, ticket, recipe.served(ticket.parts))
                await self._answer(steps, job, frame, places, responder)

    async def _encoded(
        self, prompt: str, request: EngineRequest, ticket: Ticket
    ) -> tuple[tuple[int, ...], int]:
        """The prompt's token ids, and how many more there may be."""
        async with self._encoding.setdefault(ticket.department, asyncio.Lock()):
            ids = await self._engine.encode(prompt, special_tokens=request.special_tokens)
        room = prompts.room(len(ids), self._info.max_model_len)
        return ids, min(int(request.sampling.get("max_tokens", room)), room)

    def _job(
        self,
        ticket: Ticket,
        ids: tuple[int, ...],
        request: EngineRequest,
        version: Version | None,
        suffix: str = "",
    ) -> Job:
        salt = prompts.cache_salt(self._key, ticket.department, version)
        return Job(ticket.uid + suffix, ids, request, version, salt)

    async def _answer(
        self,
        steps_of: AsyncGenerator[Step, None],
        job: Job,
        frame: answers.Frame,
        places: list[Place],
        responder: Responder,
    ) -> None:
        finished = False
        # Closed here and not by the garbage collector: whatever stops us stops the engine's work.
        async with contextlib.aclosing(steps_of) as steps:
            async for step in steps:
                finished = step.finished
                for place in places:
                    place.produced(sum(part.num_tokens for part in step.sequences.values()))
                responder.send(answers.answer(step, job, frame), job.request.returns)
        if not finished:
            raise Unavailable("the engine ended the request early.", retry_after=5)


def _frame(prompt: str, request: EngineRequest, ticket: Ticket, served: str) -> answers.Frame:
    prefix = prompt if request.prepend_prompt and not request.stream else ""
    fusion = recipe.account(ticket.parts, request.fusion) if request.fusion else ""
    return answers.Frame(prefix, served, fusion)
