"""``tools policy`` and ``tools keys``."""

from __future__ import annotations

import fnmatch
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ensemble.access import parse_policy
from tools import keys
from tools.policy.check import covers, remarks
from tools.policy.command import app
from tools.policy.lines import Lines

DIGEST = hashlib.sha256(b"key").hexdigest()
NOW = 1_800_000_000.0
GOOD = f"""\
version: 1
departments:
  fin: {{adapters: ["fin_*"], base: false}}
  ops:
    base: true
    adapters:
      - fin_risk_*
      - "svc_*"
principals:
  - name: fin-app
    department: fin
    api_key_sha256: ["{DIGEST}"]
  - name: operator
    department: ops
    api_key_sha256: {"a" * 64}
    roles: [admin]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("principal", "lora_id", "line", "code"),
    [
        ("fin-app", "fin_risk_v1", 3, 0),
        ("fin-app", "svc_chat_v1", 3, 2),
        ("fin-app", "base", 3, 2),
        ("nobody", "base", 9, 2),
        ("operator", "base", 16, 2),
        ("fin-app", "../x", 3, 2),
    ],
)
def test_explain_names_the_line(
    tmp_path: Path, principal: str, lora_id: str, line: int, code: int
) -> None:
    path = write(tmp_path, GOOD)
    found = run("explain", "--policy", str(path), "--principal", principal, "--lora-id", lora_id)
    assert found[0] == code
    assert found[1].startswith(f"{path}:{line}: {'allowed' if code == 0 else 'not allowed'}: ")


def test_explain_finds_the_glob_that_decides(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[admin]", "[caller, admin]"))
    for lora_id, line in (("fin_risk_v1", 7), ("svc_chat_v1", 8), ("base", 5), ("qa_x_v1", 6)):
        code, text = run(
            "explain", "--policy", str(path), "--principal", "operator", "--lora-id", lora_id
        )
        assert text.startswith(f"{path}:{line}: "), text
        assert code == (2 if lora_id == "qa_x_v1" else 0)


@pytest.mark.parametrize(
    ("mixture", "line", "why"),
    [
        ("fin_risk_v1*0.6+svc_chat_v1*0.4", 6, ""),
        ("fin_risk_v1*0.6+svc_chat_v1*0.3", 6, "base has a share of 0.1"),
        ("fin_risk_v1*0.6+qa_x_v1*0.4", 7, "qa_x_v1: no glob"),
        ("fin_risk_v1*1e", 4, "the weight of term 1"),
        ("fin_risk_v1*0.5+svc*0.5", 4, "not a lora_id"),
    ],
)
def test_explain_of_a_mixture(tmp_path: Path, mixture: str, line: int, why: str) -> None:
    text = GOOD.replace("[admin]", "[caller, admin]").replace(
        "    base: true\n", "    base: true\n    fusion: true\n"
    )
    ask = ("explain", "--principal", "operator", "--lora-id", mixture, "--policy")
    code, said = run(*ask, str(write(tmp_path, text)))
    assert said.split(": ")[0].endswith(f":{line}") and why in said, said
    assert code == (0 if line == 6 else 2)
    code, said = run(*ask, str(write(tmp_path, text.replace("fusion: true", "fusion: false"))))
    assert code == 2 and ("fusion is false" in said or line == 4)
    # What base has a part in, whoever may not use base may not use.
    code, said = run(*ask, str(write(tmp_path, text.replace("base: true", "base: false"))))
    assert (code == 0) == (mixture == "fin_risk_v1*0.6+svc_chat_v1*0.4"), said


def test_check_of_a_good_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[admin]", "[caller]"))
    code, text = run("check", str(path))
    assert (code, text) == (0, f"{path}: 2 departments, 2 principals, 0 remarks\n")


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("- fin_risk_*", "- fin_*\n      - fin_risk_*", 8, "shadowed: 'fin_*'"),
        ("- fin_risk_*", '- "*"', 8, "shadowed: '*'"),
        ('- "svc_*"', "- fin_risk_*", 8, "shadowed: 'fin_risk_*'"),
        ("department: fin", "department: ops", 3, "nobody is in the department 'fin'"),
        ('adapters: ["fin_*"], ', "", 3, "'fin' may use nothing"),
        (f'    api_key_sha256: ["{DIGEST}"]\n', "", 10, "has no key and no jwt_subject"),
        ("[admin]", "[admin]", 13, "may not generate"),
    ],
)
def test_what_is_odd(old: str, new: str, line: int, says: str) -> None:
    text = GOOD.replace(old, new)
    found = remarks(parse_policy(Path("p"), text), Lines(text), now_s=NOW)
    assert any(r.line == line and says in r.text for r in found), found


def test_expired_keys(tmp_path: Path) -> None:
    old = f'{{sha256: "{DIGEST}", expires: 2020-01-31}}'
    text = GOOD.replace(f'["{DIGEST}"]', f'\n      - {old}\n      - "{"b" * 64}"')
    (found, _) = remarks(parse_policy(Path("p"), text), Lines(text), now_s=NOW)
    assert (found.line, found.error) == (13, False) and "has expired" in found.text
    path = write(tmp_path, GOOD.replace(f'"{DIGEST}"', old))
    code, shown = run("check", str(path))
    assert code == 1 and "all keys of 'fin-app' have expired" in shown


def test_globs_that_match_no_known_adapter(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[admin]", "[caller]"))
    (tmp_path / "adapters" / "fin_risk_v1").mkdir(parents=True)
    code, text = run("check", str(path), "--adapters", str(tmp_path / "adapters"))
    assert code == 0
    assert f"{path}:8: warning: 'svc_*' of 'ops' matches no known adapter" in text
    assert run("check", str(path), "--adapters", str(tmp_path / "none"))[0] == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("department: fin", "department: gone", "no department 'gone'"),
        ("a" * 64, DIGEST, "this key is also fin-app's"),
        ("base: true", "bas: true", "unknown key"),
        ("version: 1", "version: [", "cannot be read as YAML"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    code, text = run("check", str(path))
    assert code == 1 and says in text


GLOBS = st.text("ab*?_", max_size=6)


@given(GLOBS, GLOBS, st.text("ab_", max_size=6))
def test_a_glob_that_covers_another_matches_all_it_matches(
    wide: str, narrow: str, name: str
) -> None:
    if covers(wide, narrow) and fnmatch.fnmatchcase(name, narrow):
        assert fnmatch.fnmatchcase(name, wide)


@given(st.text("ab_", min_size=1, max_size=6), GLOBS)
def test_fixed_text_is_covered_by_what_matches_it(name: str, wide: str) -> None:
    assert covers(wide, name) == fnmatch.fnmatchcase(name, wide)


def test_a_new_key_is_shown_once_with_its_digest() -> None:
    result = CliRunner().invoke(keys.app, ["new"])
    key, digest = (line.split(": ")[1].strip() for line in result.output.splitlines())
    assert hashlib.sha256(key.encode()).hexdigest() == digest
    assert len(key) > 40 and key.startswith("lora-") and "." not in key
    assert CliRunner().invoke(keys.app, ["new"]).output != result.output
    assert CliRunner().invoke(keys.app, ["new", "--prefix", "a.b"]).exit_code == 2
