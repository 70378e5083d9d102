"""No department learns anything about another from the engine's prefix cache."""

from __future__ import annotations

import pytest

from ensemble import sampling
from python_backend.errors import InvalidArgument
from python_backend.settings import LimitSettings
from tests.unit.python_backend.service_house import House, run


def salts(*departments: str) -> list[str]:
    found: list[str] = []

    async def test(house: House) -> None:
        for department in departments:
            call, _ = house.call(ticket_changes={"department": department})
            await house.handle(call)
        found.extend(job.cache_salt for job in house.engine.jobs)

    run(test)
    return found


def test_one_salt_per_department_that_nobody_can_guess() -> None:
    fin, svc, again = salts("fin", "svc", "fin")
    assert fin == again != svc
    assert len(fin) == 64 and int(fin, 16)


def test_names_that_only_differ_at_their_end_have_nothing_in_common() -> None:
    one, two, three = salts("fin", "fin2", "fi")
    assert len({one, two, three}) == 3


@pytest.mark.parametrize("name", ["cache_salt", "prompt_adapter", "mm_processor_kwargs"])
def test_the_client_has_no_say(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not a known sampling parameter"):
        sampling.canonical({name: "mine"}, LimitSettings())
