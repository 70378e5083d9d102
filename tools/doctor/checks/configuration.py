"""Settings and policy: what cannot be used, and what is odd about the rest."""

from __future__ import annotations

from collections.abc import Iterator

from python_backend.settings import Settings
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, few, ok, warning


def settings(facts: Facts) -> Iterator[Finding]:
    """serving.yaml, and whether it names adapters that there are."""
    name, found = "settings", facts.settings
    if found is None:
        for line in facts.settings_problem.splitlines():
            yield failure(name, line, "correct it; README, Settings, lists the keys")
        return
    fine = not facts.file_problems
    for problem in facts.file_problems:
        reason, _, cure = problem.rpartition("; ")
        yield warning(name, reason, cure)
    for finding in (*_open(facts, found), *_names(facts, found)):
        fine = False
        yield finding
    if fine:
        yield ok(name, "nothing is odd")


def _open(facts: Facts, found: Settings) -> Iterator[Finding]:
    if found.access.control != "strict":
        yield warning(
            "settings",
            f"access.control is {found.access.control}: what the policy forbids is served",
            "set access.control: strict once the audit shows nothing overlooked",
        )
    if not found.audit.enabled:
        yield warning("settings", "there is no audit", "set audit.enabled: true")
    if not found.observation.enabled:
        yield warning(
            "settings", "nothing is watched: no breaker moves", "set observation.enabled: true"
        )
    slots = facts.number("max_loras", 4)
    if found.admission.reserve_slots >= slots:
        yield advice(
            "settings",
            f"admission.reserve_slots {found.admission.reserve_slots} of {slots} slots: one "
            "adapter at a time while a department is away",
            "raise max_loras or lower the reserve",
        )


def _names(facts: Facts, found: Settings) -> Iterator[Finding]:
    known = facts.adapters.known
    if facts.adapters.problem:
        return
    missing = sorted({t for route in found.aliases.values() for t in route.targets} - known)
    if missing:
        yield warning(
            "settings", f"aliases lead to {few(missing)}, which are not there", "add them"
        )
    warm = found.tiers.warm
    if isinstance(warm, tuple) and (missing := sorted(set(warm) - known)):
        yield warning("settings", f"tiers.warm names {few(missing)}: not there", "add them")
    allowed = found.access.resolved(found.aliases)
    if allowed is not None and (missing := sorted(allowed - known)):
        yield warning(
            "settings", f"access.allowed_lora_ids names {few(missing)}: not there", "add them"
        )
    total = sum(folder.size_bytes for folder in facts.adapters.folders)
    if warm == "all" and total > found.tiers.host_bytes:
        yield advice(
            "settings",
            "tiers.warm is all, and tiers.host_bytes do not hold all",
            f"raise tiers.host_bytes to {total}, or warm the most used ones",
        )


def policy(facts: Facts) -> Iterator[Finding]:
    """What `tools policy check` says."""
    if facts.settings is None:
        return
    where = facts.settings.policy.name
    if facts.policy_problem:
        yield failure("policy", facts.policy_problem, "python -m tools policy check FILE")
    for remark in facts.policy_remarks:
        yield warning("policy", f"{where}:{remark.line}: {remark.text}", "correct the policy")
    if not facts.policy_problem and not facts.policy_remarks:
        yield ok("policy", "nothing is odd")
