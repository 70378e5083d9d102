"""Many requests at once through all doors: every answer says its own word."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import sampling

pytestmark = pytest.mark.server

REQUESTS, AT_ONCE, TOKENS, LIMIT_S = 500, 16, 4, 90.0


def test_five_hundred_mixed_requests(
    server: Server, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"base": "Paris", **server.markers}
    turns = [
        (DOORS[number % len(DOORS)], list(words)[number // len(DOORS) % len(words)])
        for number in range(REQUESTS)
    ]
    random.Random(500).shuffle(turns)

    def ask(turn: tuple[str, str]) -> str | None:
        """None, or what is wrong with the answer."""
        door, lora_id = turn
        reply = client.answer(
            door,
            text_input="The capital of France is",
            lora_id=lora_id,
            sampling_parameters=sampling(max_tokens=TOKENS),
        )
        said = reply.text.split()
        right = (
            (said[0].rstrip(".") == "Paris" and reply.served == "base")
            if lora_id == "base"
            else said == [words[lora_id]] * TOKENS and reply.served.split("@")[0] == lora_id
        )
        return None if right else f"{door} {lora_id}: {reply.text!r} by {reply.served}"

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = [problem for problem in pool.map(ask, turns) if problem]
    took = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{REQUESTS} mixed requests in {took:.1f} s: {REQUESTS / took:.1f} a second")
    assert wrong == []
    assert took < LIMIT_S
