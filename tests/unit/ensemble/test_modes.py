"""Mode ``auto`` in the gate: weights from the prompt, among what the caller may use."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from ensemble import trained_gate
from ensemble.audit import GateAudit
from ensemble.gate import Gate, PolicySource
from python_backend.adapters.catalog import Snapshot, SnapshotReader, publish
from python_backend.errors import InvalidArgument, NotFound, Unavailable
from python_backend.fusion import embeddings, gate_file
from python_backend.fusion.gating import Gate as Weigher
from python_backend.messages import EngineRequest, RawRequest
from python_backend.settings import Settings
from python_backend.ticket import Part, peek
from tests.unit.ensemble.audit_house import Lines
from tests.unit.ensemble.conftest import BOOT_ID, TICKET_KEY, sha

#: The prompt's words are the only tokens; each stands for one adapter, ``other`` for none.
WORDS = ("other", "risk", "tone", "chat", "old")
NAMES = ("fin_risk_v1", "fin_tone_v1", "svc_chat_v1", "fin_risk_v3")


def sure_gate(base: str) -> Weigher:
    """A gate that goes by the words: of the words with a domain each has an equal share."""
    return Weigher(
        names=NAMES,
        query=np.eye(5, dtype=np.float32),
        keys=np.eye(5, dtype=np.float32) * 30,
        # What a token says is a vector along its own key: equal shares give equal weights.
        values=np.eye(5, dtype=np.float32) * 3,
        readout=np.array([1.0, 0.01], np.float32),
        base=base,
    )


@pytest.fixture
def folder(tmp_path: Path, model_dir: Path) -> Path:
    """A trained gate beside a model of five words."""
    import safetensors.numpy

    matrix = np.eye(len(WORDS), dtype=np.float32)
    safetensors.numpy.save_file({"wte.weight": matrix}, model_dir / "model.safetensors")
    words = {word: at for at, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="other"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(model_dir / "tokenizer.json"))
    gate_file.write(tmp_path / "gate", sure_gate(embeddings.open_model(model_dir).digest))
    return tmp_path / "gate"


@dataclasses.dataclass
class Desk:
    gate: Gate
    lines: Lines

    def ask(self, text: str, who: str = "admin", **changes: Any) -> Any:
        fusion = {"mode": "auto", **changes.pop("fusion", {})}
        raw = RawRequest(
            credential=f"{who}-key".encode(),
            text_input=text.encode(),
            fusion=json.dumps(fusion).encode(),
        )
        raw = dataclasses.replace(raw, **changes)
        return self.gate.decide(raw, now_s=100.0, now_ns=10**12)

    def parts(self, text: str, who: str = "admin", **changes: Any) -> dict[str, float]:
        found: tuple[Part, ...] = peek(self.ask(text, who, **changes).ticket).parts
        assert all(part.digest == sha(part.lora_id) for part in found)
        return {part.lora_id: part.weight for part in found}


@pytest.fixture
def make_desk(tmp_path: Path, policy_path: Path, snapshot: Snapshot, folder: Path) -> Any:
    def make(control: str = "strict", rank: int = 16, **auto: Any) -> Desk:
        settings = Settings.model_validate(
            {
                "adapters": {"root": tmp_path / "adapters"},
                "policy": policy_path,
                "state_dir": tmp_path / "state",
                "aliases": {"risk": "fin_risk_v1", "chat": "svc_chat_v1"},
                "fusion": {"auto": {"gate": folder, **auto}},
                "access": {"control": control},
            }
        )
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        known = dataclasses.replace(snapshot, aliases=settings.aliases, max_lora_rank=rank)
        publish(settings.run_dir, known)
        lines = Lines()
        reader = SnapshotReader(settings.run_dir, BOOT_ID)
        source = PolicySource(policy_path)
        audit = GateAudit(lines, settings.access.control)
        return Desk(Gate(settings, source, reader, TICKET_KEY, BOOT_ID, audit=audit), lines)

    return make


@pytest.fixture
def desk(make_desk: Any) -> Desk:
    found: Desk = make_desk()
    return found


def test_weights_follow_the_prompt(desk: Desk) -> None:
    assert desk.parts("risk") == {"fin_risk_v1": 1.0}
    assert desk.parts("chat") == {"svc_chat_v1": 1.0}
    assert desk.parts("risk chat") == {"fin_risk_v1": 0.5, "svc_chat_v1": 0.5}
    assert desk.parts("other other") == {}
    assert desk.parts("risk chat") == desk.parts("chat risk")


def test_the_decision_and_its_audit_line(desk: Desk) -> None:
    decision = desk.ask("risk chat")
    assert EngineRequest.from_json(decision.request).fusion == "auto"
    desk.ask("other")
    mixed, alone = desk.lines.lines
    assert (mixed["mode"], mixed["resolved"]) == ("auto", "fin_risk_v1*0.5+svc_chat_v1*0.5")
    assert (alone["mode"], alone["resolved"]) == ("auto", "base")


def test_only_what_the_caller_may_use_and_what_is_ready_counts(desk: Desk) -> None:
    # The department fin may use neither svc's adapter nor base: all goes to its own.
    assert desk.parts("risk chat", "fin") == {"fin_risk_v1": 1.0}
    only_chat = desk.parts("chat chat", "fin")
    assert sum(only_chat.values()) == 1.0 and only_chat.keys() <= {"fin_risk_v1", "fin_tone_v1"}
    # fin_risk_v3 has a learnt key, but is disabled.
    assert "fin_risk_v3" not in desk.parts("old risk")


def test_who_may_not_mix_learns_nothing(desk: Desk) -> None:
    for text in ("chat", "risk", ""):
        with pytest.raises((NotFound, InvalidArgument)) as error:
            desk.ask(text, "svc")
        assert isinstance(error.value, NotFound) or text == ""


def test_candidates(desk: Desk) -> None:
    def named(*names: str) -> dict[str, float]:
        return desk.parts("risk chat tone", fusion={"candidates": list(names)})

    assert named("chat", "fin_tone_v1") == {"fin_tone_v1": 0.5, "svc_chat_v1": 0.5}
    for unusable in ("fin_risk_v3", "fin_nobody_v1"):
        with pytest.raises(NotFound):
            named("chat", unusable)
    with pytest.raises(NotFound):
        desk.parts("risk", "fin", fusion={"candidates": ["svc_chat_v1"]})
    with pytest.raises(InvalidArgument, match=r"fusion\.candidates: not a lora_id"):
        named("../x")


def test_a_candidate_without_a_learnt_key(make_desk: Any, folder: Path, model_dir: Path) -> None:
    rows = embeddings.open_model(model_dir)
    gate = gate_file.read(folder, base=rows.digest, hidden=rows.hidden)
    fewer = dataclasses.replace(gate, names=NAMES[:1], keys=gate.keys[:2], values=gate.values[:2])
    gate_file.write(folder, fewer)
    desk = make_desk()
    with pytest.raises(InvalidArgument, match="does not know all of them"):
        desk.ask("risk", fusion={"candidates": ["risk", "chat"]})


def test_names_beside_auto(desk: Desk) -> None:
    with pytest.raises(InvalidArgument, match="lora_id: mode auto chooses"):
        desk.ask("risk", lora_id=b"fin_risk_v1")
    with pytest.raises(InvalidArgument, match="lora_name: mode auto chooses"):
        desk.ask("risk", parameters={"lora_name": "fin_risk_v1"})


def test_few_parts_on_a_grid_that_fit_together(make_desk: Any) -> None:
    three = "risk chat tone"
    assert len(make_desk(rank=24).parts(three)) == 3
    assert set(make_desk(rank=24, grid=0.25).parts(three).values()) <= {0.25, 0.5, 0.75, 1.0}
    assert len(make_desk(rank=24, max_parts=2).parts(three)) == 2
    assert len(make_desk(rank=16).parts(three)) == 2, "each has rank 8"
    assert make_desk(rank=24, least=0.6).parts("risk risk risk chat") == {"fin_risk_v1": 1.0}


def test_a_conversation_counts_by_what_the_user_said(desk: Desk) -> None:
    def messages(*turns: tuple[str, str]) -> bytes:
        return json.dumps([{"role": role, "content": text} for role, text in turns]).encode()

    said = messages(("system", "chat chat chat"), ("user", "risk"))
    assert desk.parts("", text_input=None, messages=said) == {"fin_risk_v1": 1.0}
    both = messages(("user", "risk"), ("assistant", "tone"), ("user", "chat"))
    assert desk.parts("", text_input=None, messages=both).keys() == {"fin_risk_v1", "svc_chat_v1"}


def test_of_a_long_prompt_both_ends_count(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_gate, "_MOST_CHARS", 5)
    both = {"fin_risk_v1": 0.5, "svc_chat_v1": 0.5}
    assert desk.parts("risk " + "tone " * 100 + "chat") == both


def test_permissive_keeps_to_the_policy_and_off_to_nothing(make_desk: Any) -> None:
    assert make_desk("permissive").parts("risk chat", "fin") == {"fin_risk_v1": 1.0}
    off = make_desk("off").parts("risk chat", "fin")
    assert off == {"fin_risk_v1": 0.5, "svc_chat_v1": 0.5}


@pytest.mark.parametrize("damage", ["cut", "gone", "other model"])
def test_a_gate_that_cannot_be_used(
    make_desk: Any, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "gate.safetensors"
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        gate_file.write(folder, sure_gate("1" * 64))
    desk = make_desk()
    for _ in range(2):
        with pytest.raises(Unavailable) as error:
            desk.ask("risk")
        assert str(folder) not in error.value.message
    assert caplog.text.count("mode auto is not served") == 1, "said once, not with every request"
    # Nothing else is touched.
    raw = RawRequest(credential=b"admin-key", text_input=b"Hi", lora_id=b"risk")
    assert desk.gate.decide(raw, now_s=100.0, now_ns=10**12).ticket


def test_a_new_gate_is_taken_and_a_broken_one_is_not(make_desk: Any, folder: Path) -> None:
    desk = make_desk()
    raw = RawRequest(credential=b"admin-key", text_input=b"risk", fusion=b'{"mode": "auto"}')

    def parts(now_s: float) -> list[str]:
        ticket = desk.gate.decide(raw, now_s=now_s, now_ns=10**12).ticket
        return [part.lora_id for part in peek(ticket).parts]

    assert parts(100.0) == ["fin_risk_v1"]
    path = folder / "gate.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:50])
    assert parts(102.0) == ["fin_risk_v1"]
    swapped = json.dumps([NAMES[2], NAMES[1], NAMES[0], NAMES[3]]).encode()
    escaped = json.dumps(json.dumps(list(NAMES))).encode()[1:-1]
    assert escaped in good
    path.write_bytes(good.replace(escaped, json.dumps(swapped.decode()).encode()[1:-1]))
    assert parts(104.0) == ["svc_chat_v1"]
