"""Whether Python, vLLM, torch, numpy and Triton fit each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, ok, warning

#: Versions of vLLM whose private names this project knows: what NVIDIA's image has, and the lock's.
OLDEST_VLLM, NEWEST_VLLM = (0, 24), (0, 32)
PYTHONS = ((3, 11), (3, 12))
#: The release that set-up assembles, from the nvidia-pytriton wheel.
ASSEMBLED = "24.10"
#: The release of the Dockerfile, with that vLLM in it.
IMAGE_RELEASE, IMAGE_VLLM = "26.07", (0, 24)
_LOOPBACK = ("127.", "::1", "localhost")


def number(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 32) of ``0.32.0+cpu``."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def python(facts: Facts) -> Iterator[Finding]:
    """3.11 and 3.12 are run."""
    found = facts.versions.python
    text = f"Python {found[0]}.{found[1]}"
    if found < PYTHONS[0]:
        yield failure("python", f"{text} is too old", "use Python 3.11 or 3.12")
    elif found > PYTHONS[-1]:
        yield warning("python", f"{text} was not tried", "use Python 3.11 or 3.12")
    else:
        yield ok("python", text)


def vllm(facts: Facts) -> Iterator[Finding]:
    """Whether vLLM is one that we know, and Triton's image the one it comes with."""
    text = facts.versions.vllm
    if not text:
        yield failure("vllm", "vLLM is not installed", "make setup, or use the image (Dockerfile)")
        return
    found = number(text)
    what = f"vLLM {text}, torch {facts.versions.torch or 'unknown'}"
    if found < OLDEST_VLLM:
        yield failure("vllm", f"{what}: older than 0.24", "use vLLM 0.24 to 0.32")
    elif found > NEWEST_VLLM:
        yield warning(
            "vllm", f"{what}: newer than what was tried", "run make test with it, or use 0.32"
        )
    elif facts.versions.triton == IMAGE_RELEASE and found != IMAGE_VLLM:
        yield warning(
            "vllm",
            f"{what}, in Triton {IMAGE_RELEASE}, which comes with vLLM 0.24",
            "leave the image's vLLM as it is",
        )
    else:
        yield ok("vllm", what)


def triton(facts: Facts) -> Iterator[Finding]:
    """Whether there is a tritonserver, and what its release is good for."""
    versions = facts.versions
    if versions.triton_problem:
        yield failure("triton", *_parts(versions.triton_problem))
        return
    release = versions.triton
    if versions.triton_assembled:
        cure = "for production use the Dockerfile, on NVIDIA's image"
        text = f"Triton {release}, assembled by set-up: it has known security advisories"
        if facts.host.startswith(_LOOPBACK):
            yield advice("triton", f"{text}; on loopback it is meant for development", cure)
        else:
            yield warning("triton", f"{text}, and {facts.host} is reachable by others", cure)
    elif not release:
        yield advice(
            "triton",
            "a tritonserver that does not tell its release",
            f"{ASSEMBLED} was run, {IMAGE_RELEASE} is what the Dockerfile builds on",
        )
    elif number(release) < number(ASSEMBLED):
        yield warning("triton", f"Triton {release} is older than {ASSEMBLED}", "use a newer image")
    else:
        yield ok("triton", f"Triton {release}")
    if release == ASSEMBLED and number(versions.numpy)[:1] >= (2,):
        # Its stub dies in deserialize_bytes_tensor.
        yield failure("numpy", f"numpy {versions.numpy} with Triton 24.10", "install numpy<2")


def _parts(problem: str) -> tuple[str, str]:
    reason, _, cure = problem.partition("; ")
    return reason, cure or "see the text"
