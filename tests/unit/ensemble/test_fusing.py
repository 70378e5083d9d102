"""Who may mix what, and every way to ask for it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from ensemble import fusing
from ensemble.access import Policy
from ensemble.enforcement import Enforcement, Trace
from ensemble.fusing import Wish
from ensemble.gate import Gate
from ensemble.router import route
from python_backend.adapters.aliases import Chosen, Route
from python_backend.adapters.catalog import Snapshot
from python_backend.errors import AdapterFailed, InvalidArgument, NotFound
from python_backend.fusion_settings import FusionSettings
from python_backend.messages import EngineRequest, RawRequest
from python_backend.ticket import Part, peek

ALIASES = {"risk": Route(to="fin_risk_v1"), "chat": Route(to="svc_chat_v1")}
SETTINGS = FusionSettings()
FIN, SVC, OPS = 0, 1, 2


def part(lora_id: str, weight: float) -> Part:
    return Part(lora_id, hashlib.sha256(lora_id.encode()).hexdigest(), weight)


@pytest.fixture
def go(policy: Policy, snapshot: Snapshot) -> Any:
    def call(
        lora_id: bytes | None = None,
        /,
        *,
        who: int = OPS,
        fusion: Any = None,
        json_name: Any = None,
        trace: Trace | None = None,
        **options: Any,
    ) -> tuple[Part, ...]:
        body = None if fusion is None else json.dumps(fusion).encode()
        return route(
            RawRequest(lora_id=lora_id, parameters=options.pop("parameters", {})),
            json_name,
            principal=policy.principals[who],
            policy=policy,
            snapshot=snapshot,
            aliases=Chosen(ALIASES, "u"),
            trace=trace,
            wish=fusing.read(body, SETTINGS),
            **options,
        )

    return call


BOTH = (part("fin_risk_v1", 0.6), part("svc_chat_v1", 0.3))
WEIGHTS = {"svc_chat_v1": 0.3, "fin_risk_v1": 0.6}


def test_every_way_to_ask(go: Any) -> None:
    text = "svc_chat_v1*0.3+risk*0.6"
    assert go(text.encode()) == BOTH
    assert go(json_name=text) == BOTH
    for field in ("lora_id", "lora_name", "X-Lora-Id"):
        assert go(parameters={field: text}) == BOTH
    assert go(fusion={"weights": WEIGHTS}) == BOTH
    assert go(fusion={"mode": "weights", "weights": {"chat": 0.3, "risk": 0.6}}) == BOTH
    assert go(text.encode(), fusion={"mode": "weights"}) == BOTH
    assert go(text.encode(), json_name="risk*0.60+chat*0.3", fusion={"weights": WEIGHTS}) == BOTH


@pytest.mark.parametrize(
    ("lora_id", "fusion"),
    [
        (b"risk*0.6+chat*0.3", {"weights": {"risk": 0.6}}),
        (b"risk*0.6+chat*0.3", {"weights": {"risk": 0.6, "chat": 0.31}}),
        (b"risk", {"weights": WEIGHTS}),
        (b"base", {"weights": WEIGHTS}),
    ],
)
def test_ways_that_disagree(go: Any, lora_id: bytes, fusion: Any) -> None:
    with pytest.raises(InvalidArgument, match="must agree"):
        go(lora_id, fusion=fusion)


def test_one_adapter_as_it_is(go: Any) -> None:
    assert go(b"risk*1") == (part("fin_risk_v1", 1.0),)
    assert go(b"risk*0.5+fin_risk_v1*0.5") == (part("fin_risk_v1", 1.0),)
    assert go(b"risk*1+chat*0") == (part("fin_risk_v1", 1.0),)
    assert go(b"risk", fusion={"mode": "weights"}) == (part("fin_risk_v1", 1.0),)
    assert go(b"risk*0.5") == (part("fin_risk_v1", 0.5),)
    assert go(b"risk*0") == ()


def test_the_trace_tells_what_was_mixed(go: Any) -> None:
    trace = Trace()
    go(b"chat*0.30+risk*0.6", trace=trace)
    assert trace.asked == [b"chat*0.30+risk*0.6"]
    assert (trace.resolved, trace.mode) == ("fin_risk_v1*0.6+svc_chat_v1*0.3", "weights")
    trace = Trace()
    go(fusion={"weights": {"chat": 1}}, trace=trace)
    assert (trace.asked, trace.resolved) == (["chat*1"], "svc_chat_v1*1")
    trace = Trace()
    go(b"risk", trace=trace)
    assert (trace.resolved, trace.mode) == ("fin_risk_v1", "")


REFUSED = [
    ("fin_risk_v1*0.5+svc_chat_v1*0.5", FIN, "not_allowed"),  # one of two is another's
    ("fin_risk_v1*1+svc_chat_v1*0", FIN, "not_allowed"),  # even without a weight
    ("fin_risk_v1*0.5+fin_none_v1*0.5", FIN, "unknown_adapter"),
    ("fin_risk_v1*0.5+fin_risk_v3*0.5", FIN, "not_ready"),  # disabled
    ("svc_chat_v1*1", SVC, "fusion_not_allowed"),
    ("svc_chat_v1*0.5+fin_risk_v1*0.5", SVC, "fusion_not_allowed"),
    # Base would be reached through a mixture, which this department may not use.
    ("fin_risk_v1*0", FIN, "base_not_allowed"),
    ("fin_risk_v1*0.6+fin_tone_v1*0.3", FIN, "base_not_allowed"),
]


@pytest.mark.parametrize(("text", "who", "reason"), REFUSED)
def test_every_part_has_to_be_allowed(go: Any, text: str, who: int, reason: str) -> None:
    with pytest.raises(NotFound) as error:
        go(text.encode(), who=who)
    assert error.value.message == NotFound().message
    assert error.value.reason == reason


def test_a_department_of_its_own_adapters(go: Any) -> None:
    assert go(b"fin_risk_v1*0.75+fin_tone_v1*0.25", who=FIN) == (
        part("fin_risk_v1", 0.75),
        part("fin_tone_v1", 0.25),
    )
    with pytest.raises(AdapterFailed):
        go(b"fin_risk_v1*0.5+fin_risk_v2*0.5", who=FIN)


def test_what_is_not_served_is_not_mixed(go: Any) -> None:
    only = Enforcement("off", frozenset({"fin_risk_v1"}))
    assert go(b"risk*0.5", who=SVC, enforcement=only) == (part("fin_risk_v1", 0.5),)
    with pytest.raises(NotFound):
        go(b"risk*0.5+chat*0.5", who=OPS, enforcement=only)


def test_permissive_lets_it_through_and_says_so(go: Any) -> None:
    trace = Trace()
    text = b"risk*0.6+chat*0.3"
    assert go(text, who=SVC, enforcement=Enforcement("permissive"), trace=trace) == BOTH
    assert trace.overlooked == ["fusion_not_allowed", "not_allowed"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("risk*1e", "the weight of term 1"),
        ("risk*0.5+..%2fb*0.5", "not a lora_id"),
        ("risk*0.5+none*0.5", "this name is reserved"),
        ("base*0.5+risk*0.5", "base has no weight of its own"),
        ("risk*3", "a weight is beyond 2"),
        ("risk*1.5+chat*1.5", "add up to 3"),
        ("risk*0.5 + chat*0.5", "without spaces"),
        ("risk*٠.٥", "in ASCII"),
    ],
)
def test_bad_expressions(go: Any, name: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as error:
        go(name.encode())
    assert error.value.field == "lora_id" and error.value.message.isascii()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "fusion"), (b"{", "fusion"), (b"[]", "fusion"), (b'"risk*0.5"', "fusion"),
        (b'{"weights": {"risk": NaN}}', "fusion"), (b'{"weights": {"risk": 1e999}}', "fusion"),
        (b'{"weights": {"risk": 1, "risk": 1}}', "fusion"), (b'{"weigths": {}}', "fusion"),
        (b"\xff", "fusion"), (b"[" * 100_000, "fusion"), (b'{"mode": "mean"}', "fusion.mode"),
        (b'{"mode": ["auto"]}', "fusion.mode"), (b'{"mode": null}', "fusion.mode"),
        (b'{"weights": {}}', "fusion.weights"), (b'{"weights": {"risk": "0.5"}}', "fusion.weights"),
        (b'{"mode": "auto", "weights": {"risk": 1}}', "fusion.weights"),
        (b'{"weights": {"risk": 1}, "candidates": ["chat"]}', "fusion.candidates"),
        (b'{"mode": "auto", "candidates": []}', "fusion.candidates"),
        (b'{"mode": "auto", "candidates": [1]}', "fusion.candidates"),
    ],
)  # fmt: skip
def test_bad_json(body: bytes, field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        fusing.read(body, SETTINGS)
    assert error.value.field == field
    assert error.value.message.isascii() and len(error.value.message) < 200


def test_wishes() -> None:
    assert fusing.read(None, SETTINGS) == Wish()
    assert fusing.read(b"{}", SETTINGS) == Wish("weights")
    assert fusing.read(b'{"mode": "auto", "candidates": ["a"]}', SETTINGS) == Wish(
        "auto", candidates=("a",)
    )


def test_weights_without_adapters(go: Any) -> None:
    with pytest.raises(InvalidArgument, match="names no adapters and weights"):
        go(fusion={})


ASK = RawRequest(credential=b"admin-key", text_input=b"Hi", lora_id=b"chat*0.3+risk*0.6")


def decide(gate: Gate, **changes: Any) -> Any:
    return gate.decide(dataclasses.replace(ASK, **changes), now_s=100.0, now_ns=10**12)


def test_a_whole_decision(gate: Gate) -> None:
    decision = decide(gate)
    assert peek(decision.ticket).parts == BOTH
    assert EngineRequest.from_json(decision.request).fusion == "weights"
    plain = decide(gate, lora_id=b"risk")
    assert EngineRequest.from_json(plain.request).fusion == ""


def test_the_audit_has_expression_and_mode(make_house: Any) -> None:
    house = make_house()
    house.gate.decide(ASK, now_s=100.0, now_ns=10**12)
    with pytest.raises(NotFound):
        house.gate.decide(
            dataclasses.replace(ASK, credential=b"svc-key", lora_id=b"svc_chat_v1*0.5"),
            now_s=100.0,
            now_ns=10**12,
        )
    allowed, refused = house.lines.lines
    assert allowed["lora_id"] == "chat*0.3+risk*0.6"
    assert allowed["resolved"] == "fin_risk_v1*0.6+svc_chat_v1*0.3"
    assert allowed["digests"] == [p.digest for p in BOTH]
    assert (allowed["mode"], refused["reason"]) == ("weights", "fusion_not_allowed")


def test_auto_without_a_trained_gate(gate: Gate) -> None:
    with pytest.raises(InvalidArgument) as error:
        decide(gate, fusion=json.dumps({"mode": "auto"}).encode())
    assert error.value.message == (
        "invalid_argument: fusion.mode: auto needs a trained gate; this server has none."
    )
