"""tools sign, verify and signing-keys, and that the server's code agrees with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from python_backend.adapters import signing_keys
from tests.badadapters import good
from tools.__main__ import app

NAME = "fin_risk_v1"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    done = run("signing-keys", "new", "--keys", path, "--key-id", "fin-1", "--for", "fin_*")
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    good().write(tmp_path / NAME)
    return tmp_path / NAME


def test_sign_and_verify(keys: Path, folder: Path) -> None:
    assert keys.stat().st_mode & 0o777 == 0o600
    assert run("verify", folder, "--keys", keys).exit_code == 1
    done = run("sign", folder, "--key-id", "fin-1", "--keys", keys, "--days", 10)
    assert (done.exit_code, done.output) == (0, f"{NAME} is signed by fin-1: 2 files\n")
    assert run("verify", folder, "--keys", keys).output == f"{NAME}: the signature is good\n"
    (folder / "extra.txt").write_text("x")
    done = run("verify", folder, "--keys", keys)
    assert done.exit_code == 1 and "extra.txt" in done.output
    assert run("sign", folder, "--key-id", "fin-1", "--keys", keys).exit_code == 0
    assert run("verify", folder, "--keys", keys).exit_code == 0
    assert run("verify", folder, "--keys", keys, "--lora-id", "fin_risk_v2").exit_code == 1


def test_rotation(keys: Path, folder: Path) -> None:
    run("sign", folder, "--key-id", "fin-1", "--keys", keys)
    rotate = ("signing-keys", "rotate", "--keys", keys, "--key-id", "fin-1", "--new-id", "fin-2")
    assert run(*rotate).exit_code == 0
    old, new = signing_keys.load(keys).keys
    assert (old.id, new.id, new.adapters) == ("fin-1", "fin-2", ("fin_*",))
    assert old.secret != new.secret and old.not_after is not None and new.not_after is None
    assert run("verify", folder, "--keys", keys).exit_code == 0
    assert run("sign", folder, "--key-id", "fin-2", "--keys", keys).exit_code == 0
    assert run("verify", folder, "--keys", keys).exit_code == 0
    assert run(*rotate[:-1], "fin-2").exit_code == 1


def test_a_key_that_ends_at_once(keys: Path, folder: Path) -> None:
    run("sign", folder, "--key-id", "fin-1", "--keys", keys)
    arguments = ("--key-id", "fin-1", "--new-id", "fin-2", "--grace-days", "0")
    assert run("signing-keys", "rotate", "--keys", keys, *arguments).exit_code == 0
    done = run("verify", folder, "--keys", keys)
    assert done.exit_code == 1 and "expired" in done.output


def test_what_is_refused(keys: Path, folder: Path, tmp_path: Path) -> None:
    secret = signing_keys.load(keys).keys[0].secret
    good().write(tmp_path / "svc_chat_v1")
    for done in (
        run("sign", tmp_path / "svc_chat_v1", "--key-id", "fin-1", "--keys", keys),
        run("sign", folder, "--key-id", "other", "--keys", keys),
        run("sign", folder, "--key-id", "fin-1", "--keys", tmp_path / "none.yaml"),
        run("sign", tmp_path / "fin_none_v1", "--key-id", "fin-1", "--keys", keys),
        run("signing-keys", "new", "--keys", keys, "--key-id", "fin-1", "--for", "fin_*"),
        run("signing-keys", "new", "--keys", keys, "--key-id", "x", "--for", "FIN*"),
    ):
        assert done.exit_code == 1 and "error: " in done.output and secret not in done.output
    assert run("sign", tmp_path, "--key-id", "fin-1", "--keys", keys).exit_code == 2
    keys.chmod(0o644)
    assert "chmod 600" in run("verify", folder, "--keys", keys).output


def test_a_publisher_signs_with_his_own_key(keys: Path, folder: Path, tmp_path: Path) -> None:
    private, public = tmp_path / "acme", tmp_path / "acme.pub"
    assert run("signing-keys", "pair", private).exit_code == 0
    assert private.stat().st_mode & 0o777 == 0o600
    assert run("signing-keys", "pair", private).exit_code == 1
    done = run("sign", folder, "--private-key", private)
    assert (done.exit_code, done.output) == (0, f"{NAME} is signed by {private}: 2 files\n")
    assert run("verify", folder, "--public-key", public).output == (
        f"{NAME}: the signature is good\n"
    )
    assert run("verify", folder, "--keys", keys).exit_code == 1
    trust = ("signing-keys", "trust", "--keys", keys, "--public-key", public, "--for", "fin_*")
    assert run(*trust, "--key-id", "acme-1").exit_code == 0
    assert run(*trust, "--key-id", "acme-2").exit_code == 1
    assert run("verify", folder, "--keys", keys).exit_code == 0
    (folder / "extra.txt").write_text("x")
    done = run("verify", folder, "--keys", keys)
    assert done.exit_code == 1 and "extra.txt" in done.output
    # One signature at a time.
    assert run("sign", folder, "--key-id", "fin-1", "--keys", keys).exit_code == 1


def test_a_publisher_changes_his_key(keys: Path, folder: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        assert run("signing-keys", "pair", tmp_path / name).exit_code == 0
    signing = ("signing-keys", "trust", "--keys", keys, "--for", "fin_*", "--key-id", "acme-1")
    assert run(*signing, "--public-key", tmp_path / "old.pub").exit_code == 0
    rotate = ("signing-keys", "rotate", "--keys", keys, "--key-id", "acme-1", "--new-id", "acme-2")
    assert run(*rotate).exit_code == 1
    assert run(*rotate, "--public-key", tmp_path / "new.pub", "--grace-days", 0).exit_code == 0
    run("sign", folder, "--private-key", tmp_path / "old")
    done = run("verify", folder, "--keys", keys)
    assert done.exit_code == 1 and "expired" in done.output
    run("sign", folder, "--private-key", tmp_path / "new")
    assert run("verify", folder, "--keys", keys).exit_code == 0


def test_what_a_publisher_is_refused(keys: Path, folder: Path, tmp_path: Path) -> None:
    run("signing-keys", "pair", tmp_path / "acme")
    secret = ("--key-id", "fin-1", "--keys", keys)
    for done, code in (
        (run("sign", folder, "--private-key", tmp_path / "acme.pub"), 1),
        (run("sign", folder, "--private-key", tmp_path / "none"), 1),
        (run("sign", folder, "--private-key", tmp_path / "acme", *secret), 2),
        (run("sign", folder), 2),
        (run("verify", folder), 2),
        (run("verify", folder, "--public-key", tmp_path / "acme"), 1),
        (run("verify", folder, "--public-key", tmp_path / "acme.pub", "--keys", keys), 2),
        (run("signing-keys", "rotate", *secret, "--new-id", "x", "--public-key", "acme.pub"), 1),
    ):
        assert done.exit_code == code and "error: " in done.output, done.output
