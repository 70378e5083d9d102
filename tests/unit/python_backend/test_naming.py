from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.adapters import naming
from python_backend.errors import InvalidArgument

SEGMENT = st.from_regex(r"[a-z0-9]{1,24}", fullmatch=True)
LORA_ID = st.builds(
    lambda head, middle, version: "_".join([head, *middle, f"v{version}"]),
    st.from_regex(r"[a-z][a-z0-9]{1,15}", fullmatch=True),
    st.lists(SEGMENT, min_size=1, max_size=3),
    st.integers(0, 9999),
)


@given(LORA_ID)
def test_well_formed_names(name: str) -> None:
    fits = len(name) <= 64
    assert naming.is_lora_id(name) is fits
    if fits:
        assert naming.check_lora_id(name) == name
        assert naming.department_of(name) == name[: name.index("_")]


@given(st.text(max_size=70))
def test_any_text_is_refused_or_of_the_grammar(name: str) -> None:
    if naming.is_lora_id(name):
        assert name.isascii() and name == name.lower() and len(name) <= 64
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
        assert re.search(r"_v[0-9]{1,4}\Z", name)


@given(LORA_ID, st.integers(0, 80), st.characters())
def test_no_second_spelling(name: str, at: int, extra: str) -> None:
    """One character more never gives a name that folds or strips to another one."""
    other = name[:at] + extra + name[at:]
    if naming.is_lora_id(other):
        assert other.casefold().strip() == other


@pytest.mark.parametrize(
    "name",
    [
        "",
        "fin",
        "fin_v1",
        "f_risk_v1",
        "1fin_risk_v1",
        "fin_risk",
        "fin_risk_v",
        "fin_risk_v12345",
        "fin__v1",
        "fin_risk_v1\n",
        " fin_risk_v1",
        "Fin_risk_v1",
        "fin-risk-v1",
        "fin_a_b_c_d_v1",
        "fin_risk_v１",
        "../fin_risk_v1",
        "a" * 17 + "_risk_v1",
        "fin_" + "a" * 25 + "_v1",
        "fin_" + "_".join(["a" * 24] * 3) + "_v1",
        "x" * 10_000,
    ],
)
def test_malformed_names_are_not_repeated(name: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        naming.check_lora_id(name)
    assert error.value.message == (
        "invalid_argument: lora_id: not a lora_id: department_business_version in lower-case "
        "ASCII letters and digits, such as fin_risk_v2, at most 64 characters."
    )


@pytest.mark.parametrize("name", ["base", "none", "default", "all"])
def test_reserved_names(name: str) -> None:
    assert not naming.is_lora_id(name) and not naming.is_alias(name)
    with pytest.raises(InvalidArgument, match="reserved"):
        naming.check_lora_id(name)


def test_aliases() -> None:
    assert naming.is_alias("risk_ctrl") and naming.is_alias("Risk-1.0")
    for name in ("", "a b", "llama:7b", ".x", "é", "a\n", "a" * 65):
        assert not naming.is_alias(name)


def test_engine_name() -> None:
    assert naming.engine_name("fin_risk_v2", "0123456789abcdef") == "fin_risk_v2@0123456789ab"
