from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend import ticket
from python_backend.settings import Settings, SettingsError, load

GOOD = "adapters: {root: adapters}\npolicy: policy.yaml\naliases: {risk: fin_risk_v2}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "serving.yaml"
    file.write_text(GOOD)
    return file


def with_environment(path: Path, **environment: str) -> Settings:
    return load(path, environment=environment)


def test_without_a_word_access_is_strict_and_audited(path: Path) -> None:
    found = load(path)
    assert (found.access.control, found.access.allowed_lora_ids) == ("strict", None)
    assert found.audit.enabled and found.audit.sync == "interval"
    assert found.audit_dir == path.parent / "state" / "audit"


def test_the_environment_overrides_the_file(path: Path) -> None:
    path.write_text(GOOD + "access: {control: strict, allowed_lora_ids: [svc_chat_v1]}\n")
    found = with_environment(
        path, LORA_ACCESS_CONTROL="permissive", ALLOWED_LORA_IDS=" risk, fin_x_v1 ,"
    )
    assert found.access.control == "permissive"
    assert found.access.resolved(found.aliases) == {"fin_risk_v2", "fin_x_v1"}
    empty = with_environment(path, LORA_ACCESS_CONTROL="", ALLOWED_LORA_IDS=" ")
    assert empty.access == load(path).access


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"LORA_ACCESS_CONTROL": "Strict"}, "access.control"),
        ({"LORA_ACCESS_CONTROL": "false"}, "access.control"),
        ({"ALLOWED_LORA_IDS": "../x"}, "access.allowed_lora_ids"),
        ({"ALLOWED_LORA_IDS": "unknown"}, "is no lora_id and no alias"),
        ({"ALLOWED_LORA_IDS": "base"}, "access.allowed_lora_ids"),
    ],
)
def test_wrong_values_stop_the_start(path: Path, environment: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(path, environment=environment)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "line",
    ["audit: {sync: always}", "audit: {max_bytes: 10}", "audit: {keep: 1}", "access: {mode: off}",
     "access: 7"],
)  # fmt: skip
def test_wrong_sections_stop_the_start(path: Path, line: str) -> None:
    path.write_text(GOOD + line + "\n")
    with pytest.raises(SettingsError, match=line.split(":")[0]):
        load(path)


def test_off_without_quotes_is_off(path: Path) -> None:
    """YAML reads a bare ``off`` as false."""
    path.write_text(GOOD + "access: {control: off}\n")
    assert load(path).access.control == "off"


@given(st.one_of(st.text(max_size=100), st.binary(max_size=100).map(lambda b: b.decode("latin-1"))))
def test_whatever_comes_as_a_ticket_is_refused_in_one_way(token: str) -> None:
    for shaped in (
        token,
        f"{token}.{token}",
        f"{ticket._b64(token.encode('utf-8', 'replace'))}.AA",
    ):
        with pytest.raises(ticket.InvalidTicket):
            ticket.peek(shaped)
        with pytest.raises(ticket.InvalidTicket):
            ticket.verify(
                shaped, bytes(32), boot_id="b", audience="a", operation="generate", prompt=b"",
                request=b"", now_ns=0,
            )  # fmt: skip
