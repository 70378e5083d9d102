"""Which adapter a request means, and whether its caller may have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble import parameters
from ensemble.access import Policy, Principal
from ensemble.enforcement import STRICT, Enforcement, Trace
from python_backend.adapters import naming
from python_backend.adapters.catalog import Snapshot, State
from python_backend.errors import AdapterFailed, InvalidArgument
from python_backend.messages import RawRequest
from python_backend.ticket import Part

#: Parameters that may name an adapter; ``x-lora-id`` is a forwarded header.
_PARAMETERS = ("lora_id", "lora_name", "x-lora-id")
_FAILED = "this adapter did not pass validation; its owner sees why in the catalog."


def route(
    raw: RawRequest,
    lora_name: Any,
    *,
    principal: Principal,
    policy: Policy,
    snapshot: Snapshot,
    aliases: Mapping[str, str],
    enforcement: Enforcement = STRICT,
    trace: Trace | None = None,
) -> tuple[Part, ...]:
    """The adapter that the request means, empty for the base model.

    Args:
        lora_name: what the sampling JSON says under that name, or None.
        trace: gets what was asked for and found, for the audit.

    Raises:
        InvalidArgument: a name is malformed or reserved, or two names disagree.
        NotFound: no such adapter, or not ready, or not for this caller: all look the same.
        AdapterFailed: the caller may use it, but it did not pass validation.
    """
    trace = Trace() if trace is None else trace
    names_asked = asked(raw, lora_name)
    trace.asked = [value for _, value in names_asked]
    chosen: str | None = None
    for field, value in names_asked:
        resolved = _resolve(
            field,
            value,
            principal=principal,
            policy=policy,
            aliases=aliases,
            enforcement=enforcement,
        )
        if chosen is not None and resolved != chosen:
            raise InvalidArgument("lora_id", "lora_id, lora_name and x-lora-id must agree")
        chosen = resolved
    caller = "caller" in principal.roles
    if chosen is None or chosen == naming.BASE:
        trace.resolved = naming.BASE
        enforcement.require(caller, "role", trace)
        enforcement.require(policy.may_use_base(principal), "base_not_allowed", trace)
        return ()
    trace.resolved = chosen
    # Everything is looked up before anything is refused: an adapter that is not there and one
    # that is somebody else's must not differ in what they cost.
    allowed = policy.may_use(principal, chosen)
    served = enforcement.serves(chosen)
    entry = snapshot.entries.get(chosen)
    state = None if entry is None else entry.state
    enforcement.require(caller, "role", trace)
    enforcement.require(allowed, "not_allowed", trace)
    if not served:
        raise enforcement.refusal("not_served")
    if state is State.FAILED:
        raise AdapterFailed(_FAILED)
    if entry is None or state is not State.READY:
        raise enforcement.refusal("unknown_adapter" if entry is None else "not_ready")
    return (Part(chosen, entry.digest),)


def asked(raw: RawRequest, lora_name: Any) -> list[tuple[str, Any]]:
    """Every place that names an adapter, with what it says; nothing of it is checked."""
    names: list[tuple[str, Any]] = []
    if raw.lora_id is not None:
        names.append(("lora_id", raw.lora_id))
    if lora_name is not None:
        names.append(("lora_name", lora_name))
    for field in _PARAMETERS:
        names += [(field, value) for value in parameters.given(raw.parameters, field)]
    return names


def _resolve(
    field: str,
    value: Any,
    *,
    principal: Principal,
    policy: Policy,
    aliases: Mapping[str, str],
    enforcement: Enforcement,
) -> str:
    """The lora_id (or ``base``) that a name stands for."""
    if not isinstance(value, str | bytes):
        raise InvalidArgument(field, "must be a string")
    # Latin-1 keeps every byte, and the grammar, which is ASCII, refuses those that are not.
    name = value.decode("latin-1") if isinstance(value, bytes) else value
    if name == naming.BASE:
        return name
    target = aliases.get(name)
    # An alias to something that the caller may not use is as malformed as a name that is no
    # alias: a "not found" here would tell that the alias exists.
    if target is not None and (policy.may_use(principal, target) or not enforcement.strict):
        return target
    return naming.check_lora_id(name, field=field)
