"""Operators' calls at the service: the desk answers, requests are cancelled by their owners."""

from __future__ import annotations

import dataclasses

from python_backend.admin.commands import Command
from python_backend.errors import NotFound
from python_backend.service import Call
from python_backend.ticket import Ticket, sha256_hex, sign
from tests.unit.python_backend.service_house import KEY, House, run, until


class Desk:
    def __init__(self) -> None:
        self.asked: list[tuple[Command, str]] = []

    async def answer(self, command: Command, ticket: Ticket) -> str:
        self.asked.append((command, ticket.principal))
        if command.op == "remove":
            raise NotFound
        return '{"adapters":[]}'


def admin_call(house: House, command: Command) -> Call:
    _, base = house.call()
    body = command.to_json()
    ticket = dataclasses.replace(
        base,
        operation="admin",
        parts=(),
        prompt_sha256=sha256_hex(b""),
        request_sha256=sha256_hex(body.encode()),
    )
    return Call(b"", body.encode(), sign(ticket, KEY), early_accept=True)


def test_the_desk_answers_once() -> None:
    async def test(house: House) -> None:
        desk = house.service.desk = Desk()
        call = admin_call(house, Command("list", by_admin=True))
        recorder = await house.handle(call)
        accepted, answer = recorder.events
        assert accepted == "accept"
        assert answer.sequences[0].text == '{"adapters":[]}'
        assert (answer.final, answer.lora_served) == (True, "admin:list")
        assert desk.asked == [(Command("list", by_admin=True), "fin-app")]
        # A ticket is good once.
        assert (await house.handle(call)).error.code == "unauthenticated"
        refused = await house.handle(admin_call(house, Command("remove", lora_id="fin_risk_v1")))
        assert refused.error.code == "not_found"

    run(test)


def test_a_ticket_covers_one_command() -> None:
    async def test(house: House) -> None:
        house.service.desk = Desk()
        call = admin_call(house, Command("remove", lora_id="fin_risk_v1"))
        other = Command("remove", lora_id="fin_risk_v2").to_json().encode()
        recorder = await house.handle(dataclasses.replace(call, request=other))
        assert recorder.error.code == "unauthenticated"

    run(test)


def test_a_department_cancels_its_own() -> None:
    async def test(house: House) -> None:
        cancel = house.service.cancel_request
        call, ticket = house.call(sampling={"max_tokens": 1000}, deadline_s=30)
        task, recorder = house.begin(call)
        await until(lambda: house.service.running == 1)
        assert not cancel("unknown", None)
        assert not cancel(ticket.uid, "svc")
        assert cancel(ticket.uid, "fin")
        await task
        assert recorder.error.code == "cancelled"
        assert not cancel(ticket.uid, "fin")

        call, ticket = house.call(sampling={"max_tokens": 1000}, deadline_s=30)
        task, recorder = house.begin(call)
        await until(lambda: house.service.running == 1)
        assert cancel(ticket.uid, None)
        await task
        assert recorder.error.code == "cancelled"

    run(test, step_s=0.01)
