"""The adapter root: who may write it, names, contents, signatures, the way they travel."""

from __future__ import annotations

from collections.abc import Iterator

from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, few, ok, size, warning

#: Adapters up to this size come over 10 Gb/s quickly enough (0.4 s), and above the second one
#: want 25 Gb/s or RDMA. Sizes in bytes, speeds in Mb/s.
SMALL, LARGE = 500_000_000, 1_000_000_000
ENOUGH, FAST = 10_000, 25_000


def root(facts: Facts) -> Iterator[Finding]:
    """Whether the folder can be read, and by whom it can be written."""
    found, settings = facts.adapters, facts.settings
    if settings is None:
        return
    if found.problem:
        yield failure("adapters", found.problem, "make it, and let the server's user read it")
        return
    if found.writable_by_all:
        yield warning(
            "adapters",
            "everybody on this machine may write the adapter root, and so decide what is served",
            f"chmod o-w {settings.adapters.root}",
        )
    broken = [f for f in found.folders if f.problem]
    for folder in broken[:10]:
        yield warning("adapters", f"{folder.lora_id}: {folder.problem}", "it will not be served")
    if len(broken) > 10:
        yield warning(
            "adapters", f"{len(broken) - 10} more would be refused", "python -m tools admin list"
        )
    if not found.known:
        yield advice("adapters", "there are none", "put some in, one folder each")
    elif not broken:
        yield ok("adapters", f"{len(found.known)} can be read")


def names(facts: Facts) -> Iterator[Finding]:
    """Folders that no adapter can be named by."""
    if facts.settings is None or facts.adapters.problem:
        return
    for name in facts.adapters.strangers[:10]:
        yield warning(
            "adapter-names",
            f"{name!a} {odd(name)}: it is not served",
            "rename it to department_business_version, such as fin_risk_v2; an alias may keep "
            "the old name for callers",
        )
    more = len(facts.adapters.strangers) - 10
    if more > 0:
        yield warning("adapter-names", f"{more} more are badly named", "rename them")
    if not facts.adapters.strangers:
        yield ok("adapter-names", "all are lora_ids")


def odd(name: str) -> str:
    """What is wrong with a folder's name, for a sentence."""
    if not name.isascii():
        return "has characters that are not ASCII"
    if any(letter.isspace() for letter in name):
        return "has spaces"
    if name != name.lower():
        return "has capital letters"
    return "is no lora_id"


def signatures(facts: Facts) -> Iterator[Finding]:
    """Whether those that must be signed are, by keys that may."""
    found, settings = facts.adapters, facts.settings
    if settings is None:
        return
    if found.keys_problem:
        yield failure("signatures", found.keys_problem, "python -m tools signing-keys --help")
        return
    if settings.signing.keys_file is None:
        yield advice(
            "signatures",
            "none is verified: whoever can write the adapter root decides what is served",
            "set signing.keys_file and signing.require (docs/adapters.md)",
        )
        return
    for folder in found.folders:
        if folder.signature_problem:
            yield warning(
                "signatures",
                f"{folder.lora_id}: {folder.signature_problem}",
                "sign it anew (python -m tools sign); it is not served as it is",
            )
    if found.unverified:
        yield advice(
            "signatures",
            f"{found.unverified} were not looked at, for there are many bytes",
            "python -m tools verify FOLDER --keys FILE",
        )
    if not settings.signing.require:
        yield advice(
            "signatures",
            "unsigned adapters are served too",
            "set signing.require: ['*'], or the globs that must be signed",
        )
    elif not any(folder.signature_problem for folder in found.folders):
        yield ok("signatures", f"{sum(bool(f.signed) for f in found.folders)} are good")


def network(facts: Facts) -> Iterator[Finding]:
    """Whether adapters that come from elsewhere come quickly enough."""
    settings = facts.settings
    if settings is None:
        return
    where = facts.adapters.remote and f"the root lies on {facts.adapters.remote}"
    if not where and settings.sources.allow:
        where = f"adapters come from {few(settings.sources.allow)}"
    if not where:
        yield ok("network", "adapters come from this machine's disk")
        return
    largest = max((folder.size_bytes for folder in facts.adapters.folders), default=0)
    speeds = [link.mbit_s for link in facts.machine.links if link.mbit_s is not None]
    text = f"{where}; the largest has {size(largest)}"
    if facts.machine.rdma:
        yield ok("network", f"{text}; RDMA: {few(facts.machine.rdma)}")
        return
    if not speeds:
        yield advice(
            "network",
            f"{text}; no interface tells its speed",
            "measure it: 10 Gb/s suffice up to 500 MB, above 1 GB take 25 Gb/s or RDMA",
        )
        return
    best = max(speeds)
    text += f", {largest * 8 / (best * 1e6):.1f} s at {best / 1000:g} Gb/s"
    if best >= FAST or (best >= ENOUGH and largest <= SMALL):
        yield ok("network", text)
    elif largest > LARGE:
        yield warning("network", text, "above 1 GB take 25 Gb/s or RDMA, or keep them on a disk")
    elif best >= ENOUGH:
        yield advice("network", text, "above 500 MB 25 Gb/s is better; or set tiers.warm")
    else:
        yield warning("network", text, "take 10 Gb/s or more, or keep adapters on a local disk")
