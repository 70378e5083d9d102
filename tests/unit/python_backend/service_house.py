"""A service on the fake engine, for tests: calls with real tickets, answers recorded."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from python_backend import errors, ticket
from python_backend.adapters.versions import Versions
from python_backend.admission import Admission, Limits
from python_backend.completion import Completion
from python_backend.engine.fake import FakeEngine
from python_backend.messages import Answer, EngineRequest
from python_backend.service import Call, GenerateService
from python_backend.ticket import Part, Ticket, sha256_hex, sign

KEY, BOOT = bytes(range(32)), "b" * 32
DIGEST = "d" * 64
PROMPT = "my secret prompt"


class Recorder:
    """What the caller sees: ``accept``, Answers, errors, ``done``, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.on_send: Callable[[], None] | None = None

    def accept(self) -> None:
        self.events.append("accept")

    def send(self, answer: Answer, returns: tuple[str, ...]) -> None:
        self.events.append(answer)
        if self.on_send is not None:
            self.on_send()

    def fail(self, error: errors.ServingError) -> None:
        self.events.append(error)

    def done(self) -> None:
        self.events.append("done")

    @property
    def ends(self) -> list[Any]:
        return [e for e in self.events if e != "accept" and getattr(e, "final", True)]

    @property
    def error(self) -> errors.ServingError:
        (end,) = self.ends
        assert isinstance(end, errors.ServingError)
        return end

    @property
    def answer(self) -> Answer:
        (end,) = self.ends
        assert isinstance(end, Answer)
        return end


class Notes:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.completions: list[Completion] = []
        self.refusal: errors.ServingError | None = None

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def record(self, completion: Completion) -> None:
        self.completions.append(completion)


class House:
    """A service on a fake engine, with a clock that tests turn."""

    def __init__(
        self,
        engine: FakeEngine,
        service: GenerateService,
        admission: Admission,
        versions: Versions,
    ) -> None:
        self.engine, self.service, self.admission = engine, service, admission
        self.versions = versions
        self.now_ns = 1_000
        self.uids = 0

    def call(
        self,
        *,
        sampling: dict[str, Any] | None = None,
        lora: str | None = "fin_risk_v1",
        prompt: str = PROMPT,
        early_accept: bool = False,
        deadline_s: float = 60,
        ticket_changes: dict[str, Any] | None = None,
        **request: Any,
    ) -> tuple[Call, Ticket]:
        self.uids += 1
        body = EngineRequest(sampling or {"max_tokens": 3}, **request).to_json()
        signed = Ticket(
            boot_id=BOOT,
            audience=ticket.ENGINE_AUDIENCE,
            operation="generate",
            uid=f"uid{self.uids}",
            department="fin",
            principal="fin-app",
            parts=(Part(lora, DIGEST),) if lora else (),
            prompt_sha256=sha256_hex(prompt.encode()),
            request_sha256=sha256_hex(body.encode()),
            deadline_ns=self.now_ns + int(deadline_s * 1e9),
            expires_ns=self.now_ns + int(120e9),
        )
        signed = dataclasses.replace(signed, **(ticket_changes or {}))
        return Call(prompt.encode(), body.encode(), sign(signed, KEY), early_accept), signed

    def cancel(self, victim: Ticket) -> Call:
        signed = dataclasses.replace(
            victim,
            operation="cancel",
            prompt_sha256=sha256_hex(ticket.CANCEL_PROMPT.encode()),
            request_sha256=sha256_hex(ticket.CANCEL_REQUEST.encode()),
        )
        return Call(b"", ticket.CANCEL_REQUEST.encode(), sign(signed, KEY))

    async def handle(self, call: Call) -> Recorder:
        recorder = Recorder()
        await self.service.handle(call, recorder)
        return recorder

    def begin(self, call: Call) -> tuple[asyncio.Task[None], Recorder]:
        recorder = Recorder()
        return asyncio.create_task(self.service.handle(call, recorder)), recorder


Test = Callable[[House], Coroutine[Any, Any, None]]


def run(test: Test, *, limit: int = 10, seats: int = 16, **engine_options: Any) -> House:
    """Runs ``test`` and checks that nothing is left behind."""

    async def main() -> House:
        engine = FakeEngine(**engine_options)
        info = await engine.start()
        versions = Versions()
        bounds = Limits(seats, info.max_loras, patience=seats, max_pending=limit)
        admission = Admission(bounds)
        versions.register("fin_risk_v1", DIGEST, Path("staged"))
        house: House
        service = GenerateService(
            engine,
            info,
            versions,
            admission,
            key=KEY,
            boot_id=BOOT,
            clock_ns=lambda: house.now_ns,
        )
        house = House(engine, service, admission, versions)
        async with asyncio.timeout(20):
            await test(house)
        assert (admission.under_way, admission.total, service.running) == ({}, 0, 0)
        assert engine.running == set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return house

    return asyncio.run(main())


async def until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.001)
