from __future__ import annotations

import fnmatch
import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ensemble.access import Policy, PolicyError, load_policy
from ensemble.policy_source import PolicySource


def write(path: Path, body: Any) -> Path:
    path.write_text(yaml.safe_dump(body))
    return path


def by_name(policy: Policy, name: str) -> Any:
    return next(p for p in policy.principals if p.name == name)


@pytest.mark.parametrize(
    ("name", "lora_id", "allowed"),
    [
        ("fin-app", "fin_risk_v1", True),
        ("fin-app", "svc_chat_v1", False),
        ("fin-app", "finance_risk_v1", False),
        ("svc-app", "fin_risk_v1", False),
        ("admin", "fin_risk_v1", True),
        ("admin", "svc_chat_v1", True),
    ],
)
def test_globs_decide(policy: Policy, name: str, lora_id: str, allowed: bool) -> None:
    assert policy.may_use(by_name(policy, name), lora_id) is allowed


def test_base_is_a_right_of_its_own(policy: Policy) -> None:
    assert [policy.may_use_base(p) for p in policy.principals] == [False, True, True]


def test_no_globs_means_nothing() -> None:
    policy = Policy.model_validate(
        {
            "version": 1,
            "departments": {"fin": {}},
            "principals": [{"name": "a", "department": "fin"}],
        }
    )
    assert not policy.may_use(policy.principals[0], "fin_risk_v1")
    assert not policy.may_use(policy.principals[0], "")
    assert not policy.may_use_base(policy.principals[0])


def test_principal_of_another_policy_is_denied(policy: Policy) -> None:
    stranger = policy.principals[0].model_copy(update={"department": "gone"})
    assert not policy.may_use(stranger, "fin_risk_v1")
    assert not policy.may_use_base(stranger)


GLOB = st.text("finx_*?v1[]!-", min_size=1, max_size=12)


@given(globs=st.lists(GLOB, max_size=4), name=st.text("finx_v1", max_size=10))
def test_compiled_globs_mean_what_fnmatch_means(globs: list[str], name: str) -> None:
    policy = Policy.model_validate(
        {
            "version": 1,
            "departments": {"fin": {"adapters": globs}},
            "principals": [{"name": "a", "department": "fin"}],
        }
    )
    expected = any(fnmatch.fnmatchcase(name, glob) for glob in globs)
    assert policy.may_use(policy.principals[0], name) is expected


def test_keys_are_found_by_digest_in_either_case(policy_body: Any, tmp_path: Path) -> None:
    principal = policy_body["principals"][0]
    principal["api_key_sha256"] = [principal["api_key_sha256"][0].upper(), "0" * 64]
    policy = load_policy(write(tmp_path / "p.yaml", policy_body))
    found = policy.by_key_digest(hashlib.sha256(b"fin-key").digest())
    assert found is not None and found[1].name == "fin-app"
    zeros = policy.by_key_digest(bytes(32))
    assert zeros is not None and zeros[1].name == "fin-app"
    assert policy.by_key_digest(hashlib.sha256(b"other").digest()) is None


def test_an_unknown_digest_of_zeros_is_nobody(policy: Policy) -> None:
    # The placeholder of the constant-time compare must not be a key that opens.
    assert policy.by_key_digest(bytes(32)) is None


def edited(body: Any, *path: Any, value: Any) -> Any:
    at = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return body


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("version",), 2, "version: Input should be 1"),
        (("extra",), 1, "extra: Extra inputs are not permitted (unknown key"),
        (("departments", "Fin"), {}, "'Fin' is not a department name"),
        (("departments", "f"), {}, "'f' is not a department name"),
        (("departments", "fin", "adapters"), ["FIN_*"], "departments.fin.adapters: Value error"),
        (("departments", "fin", "base"), "yes", "departments.fin.base: Input should be a valid"),
        (("departments", "fin", "weigth"), 1, "departments.fin.weigth: Extra inputs"),
        (("principals", 0, "department"), "gone", "principals.0 (fin-app): no department 'gone'"),
        (("principals", 1, "name"), "fin-app", "principals.1 (fin-app): the name is used twice"),
        (("principals", 0, "api_key_sha256"), ["fin-key"], "never the key itself"),
        (("principals", 0, "api_key_sha256"), ["ä" * 64], "not 64 hex digits"),
        (("principals", 0, "roles"), ["root"], "principals.0.roles.0: Input should be"),
        (("principals", 0, "name"), "a\nb", "principals.0.name"),
    ],
)
def test_wrong_files_name_the_key(
    tmp_path: Path, policy_body: Any, path: tuple[Any, ...], value: Any, says: str
) -> None:
    file = write(tmp_path / "p.yaml", edited(policy_body, *path, value=value))
    with pytest.raises(PolicyError) as error:
        load_policy(file)
    assert str(error.value).startswith(f"{file}: ")
    assert says in str(error.value)


def test_one_key_for_two_principals_is_refused(tmp_path: Path, policy_body: Any) -> None:
    principals = policy_body["principals"]
    principals[1]["api_key_sha256"] = principals[0]["api_key_sha256"][0].upper()
    with pytest.raises(PolicyError, match="this key is also fin-app's"):
        load_policy(write(tmp_path / "p.yaml", policy_body))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("\x00", "cannot be read as YAML"),
        ("version: 1\ndepartments: {fin: {}, fin: {}}\n", "the key 'fin' is given twice"),
        ("!!python/object/apply:os.system ['true']", "cannot be read as YAML"),
    ],
)
def test_unreadable_files(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=says):
        load_policy(path)


def test_missing_file_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="tools demo"):
        load_policy(tmp_path / "none.yaml")


def test_source_takes_a_changed_file_and_keeps_the_last_good_one(
    policy_path: Path, policy_body: Any
) -> None:
    errors: list[str] = []
    source = PolicySource(policy_path, on_error=errors.append)
    first = source.current(0.0)
    write(policy_path, edited(policy_body, "departments", "fin", "base", value=True))
    assert source.current(0.4) is first
    second = source.current(0.6)
    assert second.may_use_base(by_name(second, "fin-app"))

    policy_path.write_text("version: 3")
    assert source.current(1.2) is second
    assert source.current(2.0) is second
    assert len(errors) == 1 and source.error == errors[0]
    assert errors[0].startswith(f"{policy_path}: version:")

    policy_path.unlink()
    assert source.current(3.0) is second
    assert len(errors) == 2 and "no such file" in errors[1]

    write(policy_path, policy_body)
    assert source.current(4.0) is not second
    assert source.error is None


def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        PolicySource(tmp_path / "none.yaml")
