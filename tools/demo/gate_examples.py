"""The demo gate's examples, put together from the adapters' own: each alone, and two at once."""

import random
from itertools import combinations

from python_backend.adapters.naming import BASE
from tools.demo.examples import ADAPTERS, DATA, examples
from tools.gate.examples import Example, held_out, read

GENERAL = DATA / "general.txt"
"""Prompts of no domain, which the base model is to answer."""

MORE = DATA / "gate.jsonl"
"""Prompts for the gate alone: what an adapter's own examples do not speak of."""

PAIRS = 120
"""Prompts of two domains, for each two adapters."""

JOINS = ("{} {}", "{} Also: {}", "{} And then: {}", "First: {} Second: {}", "{} Besides, {}")
"""How two requests stand in one prompt."""

SEED = 11


def general() -> list[str]:
    """Return the prompts of no domain."""
    return GENERAL.read_text(encoding="utf-8").split("\n")[:-1]


def demo_examples() -> list[Example]:
    """Return examples for the trained adapters: each alone, each two, and with base."""
    draw = random.Random(SEED)  # noqa: S311 the same examples each time are what is wanted
    nobody = general()
    known = set(nobody)
    # The adapters answer everything in their form, so their own sets hold prompts of no domain.
    prompts = {
        name: [example.prompt for example in examples(name) if example.prompt not in known]
        for name in ADAPTERS
    }
    for more in read(MORE):
        (name,) = more.target
        prompts[name].append(more.prompt)
    found = [Example(prompt, {BASE: 1.0}) for prompt in nobody]
    found += [Example(prompt, {name: 1.0}) for name in ADAPTERS for prompt in prompts[name]]
    for one, other in combinations(ADAPTERS, 2):
        for prompt in joined(prompts[one], prompts[other], PAIRS, draw):
            found.append(Example(prompt, {one: 0.5, other: 0.5}))
    for name in ADAPTERS:
        for prompt in joined(prompts[name], nobody, PAIRS // 3, draw):
            found.append(Example(prompt, {name: 0.5, BASE: 0.5}))
    return found


def joined(some: list[str], others: list[str], count: int, draw: random.Random) -> list[str]:
    """Return ``count`` prompts of one of ``some`` and one of ``others`` each.

    A prompt is held out with both its halves or with neither: nothing of what is measured on has
    been seen in training.
    """
    found: list[str] = []
    while len(found) < count:
        halves = [draw.choice(some), draw.choice(others)]
        draw.shuffle(halves)
        whole = draw.choice(JOINS).format(*halves)
        if len({held_out(text) for text in (whole, *halves)}) == 1:
            found.append(whole)
    return found
