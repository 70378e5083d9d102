from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from python_backend import settings
from python_backend.settings import SettingsError, load

GOOD = """
engine: {model: model, tokenizer: org/name, max_loras: 4}
adapters: {root: adapters}
policy: policy.yaml
aliases: {risk_ctrl: fin_risk_v2}
limits: {max_tokens: 64}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    file = tmp_path / "serving.yaml"
    file.write_text(GOOD)
    return file


def test_paths_are_relative_to_the_file(path: Path) -> None:
    found, folder = load(path), path.parent
    assert found.adapters.root == folder / "adapters"
    assert found.policy == folder / "policy.yaml"
    assert found.state_dir == folder / "state"
    assert found.run_dir == folder / "state" / "run"
    assert found.staged_dir == folder / "state" / "staged"
    assert found.engine == {"model": str(folder / "model"), "tokenizer": "org/name", "max_loras": 4}
    assert {name: route.to for name, route in found.aliases.items()} == {"risk_ctrl": "fin_risk_v2"}
    assert (found.limits.max_tokens, found.limits.default_max_tokens) == (64, 16)


def test_the_state_dir_can_be_given(path: Path, tmp_path: Path) -> None:
    assert load(path, state_dir=tmp_path / "other").state_dir == tmp_path / "other"


def test_settings_do_not_change(path: Path) -> None:
    with pytest.raises(ValidationError):
        load(path).limits.n = 99


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("adapers: {}\n" + GOOD, "adapers: Extra inputs are not permitted (unknown key"),
        (GOOD.replace("64}", "0}"), "limits.max_tokens: Input should be greater than 0"),
        (GOOD.replace("64}", "8}"), "default_max_tokens is above limits.max_tokens"),
        (GOOD.replace("64}", "64, deadline_s: .nan}"), "limits.deadline_s: Input should be"),
        (GOOD.replace("64}", "64, deadline_s: .inf}"), "limits.deadline_s: Input should be"),
        (GOOD.replace("adapters: {root: adapters}", ""), "adapters: Field required"),
        (GOOD.replace("policy: policy.yaml", ""), "policy: Input is not a valid path"),
        (GOOD.replace("risk_ctrl:", "base:"), "'base' is reserved"),
        (GOOD.replace("risk_ctrl:", "fin_risk_v1:"), "must not look like one"),
        (GOOD.replace("fin_risk_v2", "../x"), "which is not a lora_id"),
        ("[]", "must be a mapping"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_wrong_files_name_the_key(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)


def test_a_missing_file_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tools demo"):
        load(tmp_path / "none.yaml")


def test_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.CONFIG_VARIABLE, raising=False)
    monkeypatch.delenv(settings.STATE_VARIABLE, raising=False)
    with pytest.raises(SettingsError, match="LORA_SERVING_CONFIG is not set"):
        settings.from_environment()
    monkeypatch.setenv(settings.CONFIG_VARIABLE, str(path))
    assert settings.from_environment() == load(path)
    monkeypatch.setenv(settings.STATE_VARIABLE, "/elsewhere")
    assert settings.from_environment().state_dir == Path("/elsewhere")
