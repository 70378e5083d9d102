"""Which adapters a request means, and whether its caller may have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ensemble import parameters
from ensemble.access import Policy, Principal
from ensemble.enforcement import STRICT, Enforcement, Trace
from ensemble.fusing import AUTO, FIELD, WEIGHTS, Wish
from python_backend.adapters import naming
from python_backend.adapters.aliases import Chosen
from python_backend.adapters.catalog import Entry, Snapshot, State
from python_backend.errors import AdapterFailed, InvalidArgument
from python_backend.fusion import expression
from python_backend.fusion.expression import Terms
from python_backend.fusion_settings import FusionSettings
from python_backend.messages import RawRequest
from python_backend.ticket import Part

#: Parameters that may name an adapter; ``x-lora-id`` is a forwarded header.
_PARAMETERS = ("lora_id", "lora_name", "x-lora-id")
_NO_WISH, _BOUNDS = Wish(), FusionSettings()
_FAILED = "this adapter did not pass validation; its owner sees why in the catalog."


def route(
    raw: RawRequest,
    lora_name: Any,
    *,
    principal: Principal,
    policy: Policy,
    snapshot: Snapshot,
    aliases: Chosen,
    enforcement: Enforcement = STRICT,
    trace: Trace | None = None,
    wish: Wish = _NO_WISH,
    bounds: FusionSettings = _BOUNDS,
) -> tuple[Part, ...]:
    """The adapters that the request means, with their weights; empty for the base model.

    Args:
        lora_name: what the sampling JSON says under that name, or None.
        trace: gets what was asked for and found, for the audit.
        wish: what the input ``fusion`` says.

    Raises:
        InvalidArgument: a name is malformed or reserved, or two names disagree.
        NotFound: no such adapter, or not ready, or not for this caller: all look the same.
        AdapterFailed: the caller may use it, but it did not pass validation.
    """
    trace = Trace() if trace is None else trace

    def resolve(field: str, value: Any) -> str:
        return _resolve(
            field,
            value,
            principal=principal,
            policy=policy,
            aliases=aliases,
            enforcement=enforcement,
        )

    chosen, trace.mode = _chosen(asked(raw, lora_name), wish, resolve, bounds, trace)
    require_role = "caller" in principal.roles
    if trace.mode:
        trace.resolved = expression.text(chosen) or naming.BASE
    else:
        trace.resolved = chosen[0][0] if chosen else naming.BASE
    # Everything is looked up before anything is refused: an adapter that is not there and one
    # that is somebody else's must not differ in what they cost.
    found = [
        (policy.may_use(principal, name), enforcement.serves(name), snapshot.entries.get(name))
        for name, _ in chosen
    ]
    enforcement.require(require_role, "role", trace)
    if trace.mode:
        enforcement.require(policy.may_fuse(principal), "fusion_not_allowed", trace)
    if expression.base_share(chosen):
        enforcement.require(policy.may_use_base(principal), "base_not_allowed", trace)
    for allowed, _, _ in found:
        enforcement.require(allowed, "not_allowed", trace)
    for _, served, _ in found:
        if not served:
            raise enforcement.refusal("not_served")
    entries = [_ready(entry, enforcement) for _, _, entry in found]
    # What has no weight has no part; whether it may be used was asked all the same.
    return tuple(
        Part(name, entry.digest, weight)
        for (name, weight), entry in zip(chosen, entries, strict=True)
        if weight
    )


def _ready(entry: Entry | None, enforcement: Enforcement) -> Entry:
    if entry is not None and entry.state is State.FAILED:
        raise AdapterFailed(_FAILED)
    if entry is None or entry.state is not State.READY:
        raise enforcement.refusal("unknown_adapter" if entry is None else "not_ready")
    return entry


def _chosen(
    names: list[tuple[str, Any]],
    wish: Wish,
    resolve: Callable[[str, Any], str],
    bounds: FusionSettings,
    trace: Trace,
) -> tuple[Terms, str]:
    """What all names together ask for in canonical form, and the mode in which it is mixed.

    Adapters with their weights, one with a weight of 1 for a plain name, none for base; the mode
    is empty where nothing is mixed.
    """
    trace.asked = [value for _, value in names]
    mode, chosen = wish.mode, None
    wanted = [(field, *_wanted(field, value, bounds)) for field, value in names]
    if wish.terms is not None:
        trace.asked.append(expression.text(wish.terms))
        wanted.append((f"{FIELD}.weights", wish.terms, True))
    for field, terms, mixed in wanted:
        if mixed:
            mode = mode or WEIGHTS
            found = expression.resolved(
                terms, functools.partial(resolve, field), bounds, field=field
            )
        else:
            name = resolve(field, terms)
            found = () if name == naming.BASE else ((name, 1.0),)
        if chosen is not None and found != chosen:
            raise InvalidArgument("lora_id", "lora_id, lora_name and x-lora-id must agree")
        chosen = found
    # Computed weights may all be base's; weights that a caller gives are of adapters.
    if mode and not chosen and mode != AUTO:
        raise InvalidArgument(FIELD, "names no adapters and weights")
    return chosen or (), mode


def _wanted(field: str, value: Any, bounds: FusionSettings) -> tuple[Any, bool]:
    """The terms of an expression, or the name as it was sent, and which of the two it is."""
    # Latin-1 keeps every byte, and the grammars, which are ASCII, refuse those that are not.
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if isinstance(text, str) and expression.is_expression(text):
        return expression.parse(text, bounds, field=field), True
    return text, False


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
    aliases: Chosen,
    enforcement: Enforcement,
) -> str:
    """The lora_id (or ``base``) that a name stands for."""
    if not isinstance(value, str):
        raise InvalidArgument(field, "must be a string")
    if value == naming.BASE:
        return value
    targets = aliases.candidates(value)
    for target in targets:
        if policy.may_use(principal, target):
            return target
    if targets and not enforcement.strict:
        return targets[0]
    # An alias to something that the caller may not use is as malformed as a name that is no
    # alias: a "not found" here would tell that the alias exists.
    return naming.check_lora_id(value, field=field)
