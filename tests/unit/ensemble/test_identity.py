from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensemble.access import Policy
from ensemble.identity import MAX_CREDENTIAL, identify
from python_backend.errors import Unauthenticated
from python_backend.messages import RawRequest

NOW_S = 1_800_000_000.0
REFUSED = "unauthenticated: a valid API key is needed."
DIFFER = "unauthenticated: the request carries two credentials that differ."


@pytest.mark.parametrize(
    "raw",
    [
        RawRequest(credential=b"fin-key"),
        RawRequest(parameters={"authorization": "Bearer fin-key"}),
        RawRequest(parameters={"Authorization": "bearer  fin-key"}),
        RawRequest(parameters={"AUTHORIZATION": "fin-key"}),
        RawRequest(parameters={"X-Api-Key": "fin-key"}),
        RawRequest(credential=b"fin-key", parameters={"x-api-key": "fin-key"}),
        RawRequest(credential=b"fin-key", parameters={"authorization": None}),
        RawRequest(parameters={"authorization": "Bearer fin-key", "Authorization": "fin-key"}),
    ],
)
def test_every_source_names_the_principal(policy: Policy, raw: RawRequest) -> None:
    assert identify(raw, policy, NOW_S).principal.name == "fin-app"


@pytest.mark.parametrize(
    "raw",
    [
        RawRequest(),
        RawRequest(credential=b""),
        RawRequest(credential=b"nobody"),
        RawRequest(credential=b"FIN-KEY"),
        RawRequest(credential=b"fin-key "),
        RawRequest(credential=b"Bearer fin-key"),
        RawRequest(credential=b"\xff\xfe"),
        RawRequest(credential=b"k" * (MAX_CREDENTIAL + 1)),
        RawRequest(parameters={"authorization": ""}),
        RawRequest(parameters={"authorization": "Bearer "}),
        RawRequest(parameters={"authorization": "Basic fin-key"}),
        RawRequest(parameters={"authorization": 7}),
        RawRequest(parameters={"x-api-key": True}),
        RawRequest(parameters={"x-api-key": ["fin-key"]}),
        RawRequest(parameters={"x-api-key": "\ud800"}),
        RawRequest(parameters={"x-api-key": "é"}),
        RawRequest(parameters={"credential": "fin-key"}),
        RawRequest(credential=b"fin-key", parameters={"x-api-key": ""}),
    ],
)
def test_all_else_is_refused_with_one_sentence(policy: Policy, raw: RawRequest) -> None:
    with pytest.raises(Unauthenticated) as error:
        identify(raw, policy, NOW_S)
    assert error.value.message == REFUSED


@pytest.mark.parametrize(
    "raw",
    [
        RawRequest(credential=b"fin-key", parameters={"x-api-key": "svc-key"}),
        RawRequest(credential=b"fin-key", parameters={"authorization": "Bearer nobody"}),
        RawRequest(parameters={"authorization": "fin-key", "Authorization": "svc-key"}),
    ],
)
def test_two_that_differ(policy: Policy, raw: RawRequest) -> None:
    with pytest.raises(Unauthenticated) as error:
        identify(raw, policy, NOW_S)
    assert error.value.message == DIFFER


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(max_size=80),
    st.text(st.characters(exclude_categories=()), max_size=80),
    st.lists(st.text(max_size=3), max_size=2),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(credential=st.one_of(st.none(), st.binary(max_size=80)), one=ANY, two=ANY)
def test_whatever_comes_nothing_else_is_raised(
    policy: Policy, credential: bytes | None, one: Any, two: Any
) -> None:
    raw = RawRequest(credential=credential, parameters={"authorization": one, "X-API-Key": two})
    with pytest.raises(Unauthenticated):
        identify(raw, policy, NOW_S)
