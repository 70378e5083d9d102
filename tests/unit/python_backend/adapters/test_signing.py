"""A signed adapter is served as it was signed, under its name, by a key that may; or not at all."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from python_backend.adapters import seal, signing, signing_keys, source_folder
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import SIGNATURE_FILE, Signature
from python_backend.adapters.signing_keys import SigningKeysError
from tests.badadapters.files import CONFIG_FILE, WEIGHTS_FILE
from tests.unit.python_backend.adapters.signing_house import (
    LIMIT,
    NAME,
    NOW,
    SignedFolder,
    edit_weights,
)

SECRET, OTHER = "11" * 32, "22" * 32


class House(SignedFolder):
    """One whose secret the server has."""

    def __init__(self, tmp: Path) -> None:
        super().__init__(
            tmp, [{"id": "fin-1", "secret": SECRET, "adapters": ["fin_*"]}], hidden=SECRET
        )

    def sign(self, key_id: str = "fin-1", secret: str = SECRET, **changes: object) -> None:
        unsigned = Signature(
            key_id=key_id,
            lora_id=NAME,
            created=int(NOW),
            files=seal.manifest(self.folder),
        ).model_copy(update=changes)
        signed = signing.sign(unsigned, bytes.fromhex(secret))
        (self.folder / SIGNATURE_FILE).write_text(signed.to_json())


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_signed_adapter_is_staged(house: House) -> None:
    house.sign()
    copy = house.stage()
    assert sorted(path.name for path in copy.path.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]


def test_an_unsigned_one_only_where_that_is_allowed(house: House) -> None:
    house.refuses(Reason.UNSIGNED, SIGNATURE_FILE)
    assert house.stage("svc_chat_v1").digest


def edit_config(folder: Path) -> None:
    path = folder / CONFIG_FILE
    path.write_bytes(path.read_bytes() + b" ")


def link_readme(folder: Path) -> None:
    shutil.copy(folder / "README.md", folder.parent / "elsewhere")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(folder.parent / "elsewhere")


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "config": (edit_config, CONFIG_FILE),
    "weights": (edit_weights, WEIGHTS_FILE),
    "another file": (lambda folder: (folder / "README.md").write_text("x"), "README.md"),
    "same size": (lambda folder: (folder / "README.md").write_text("about me"), "README.md"),
    "extra": (lambda folder: (folder / "extra.txt").write_text("x"), "extra.txt"),
    "extra folder": (lambda folder: (folder / "sub").mkdir(), "sub"),
    "missing": (lambda folder: (folder / "README.md").unlink(), "README.md"),
    "symlink": (link_readme, "README.md"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_what_was_edited_is_named(house: House, kind: str) -> None:
    house.sign()
    edit, name = EDITS[kind]
    edit(house.folder)
    house.refuses(Reason.BAD_SIGNATURE, name)


def test_the_signature_itself_may_not_be_a_link(house: House) -> None:
    house.sign()
    path = house.folder / SIGNATURE_FILE
    path.rename(house.folder.parent / "sig")
    path.symlink_to(house.folder.parent / "sig")
    house.refuses(Reason.BAD_SIGNATURE, SIGNATURE_FILE)


@pytest.mark.parametrize("field", ["key_id", "lora_id", "created", "expires", "files"])
def test_every_field_is_signed(house: House, field: str) -> None:
    house.write_keys(
        [
            {"id": "fin-1", "secret": SECRET, "adapters": ["fin_*"]},
            {"id": "fin-2", "secret": OTHER, "adapters": ["fin_*"]},
        ]
    )
    house.sign()
    path = house.folder / SIGNATURE_FILE
    body = json.loads(path.read_text())
    body[field] = {
        "key_id": "fin-2",
        "lora_id": "fin_risk_v2",
        "created": int(NOW) + 1,
        "expires": int(NOW) + 10_000,
        "files": body["files"][:1],
    }[field]
    path.write_text(json.dumps(body))
    house.refuses(Reason.BAD_SIGNATURE, "does not fit")


def test_a_good_adapter_under_another_name(house: House) -> None:
    house.sign()
    house.refuses(Reason.BAD_SIGNATURE, NAME, lora_id="fin_risk_v2")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2}', "\xff", '{"version": 1, "version": 1}', "x" * 300_000],
)
def test_what_is_no_signature(house: House, text: str) -> None:
    (house.folder / SIGNATURE_FILE).write_bytes(text.encode("latin-1"))
    house.refuses(Reason.BAD_SIGNATURE, SIGNATURE_FILE)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ".", "..", "a/b", SIGNATURE_FILE])
def test_a_manifest_names_files_of_the_folder(house: House, name: str) -> None:
    house.sign()
    path = house.folder / SIGNATURE_FILE
    body = json.loads(path.read_text())
    body["files"][0]["name"] = name
    path.write_text(json.dumps(body))
    house.refuses(Reason.BAD_SIGNATURE)


def test_keys_that_may_not(house: House) -> None:
    house.sign("fin-9")
    house.refuses(Reason.SIGNING_KEY, "fin-9", "not in")
    house.write_keys([{"id": "svc-1", "secret": SECRET, "adapters": ["svc_*"]}])
    house.sign("svc-1")
    house.refuses(Reason.SIGNING_KEY, "not for this adapter")


def test_a_key_and_a_signature_expire(house: House) -> None:
    end = datetime.datetime.fromtimestamp(NOW + 10, datetime.UTC)
    key = {"id": "fin-1", "secret": SECRET, "adapters": ["fin_*"], "not_after": end}
    house.write_keys([key])
    house.sign(expires=int(NOW) + 5)
    house.now = NOW + 5
    house.refuses(Reason.BAD_SIGNATURE, "has expired")
    house.now = NOW + 10
    house.refuses(Reason.SIGNING_KEY, "has expired")
    house.now = NOW + 4.9
    assert house.stage().digest


def test_rotation_and_a_broken_keys_file(house: House) -> None:
    house.sign()
    house.write_keys([{"id": "fin-2", "secret": OTHER, "adapters": ["fin_*"]}])
    house.refuses(Reason.SIGNING_KEY, "fin-1")
    house.keys.write_text("keys: [")
    house.refuses(Reason.SIGNING_KEY, "cannot be used")
    house.write_keys([{"id": "fin-1", "secret": SECRET, "adapters": ["fin_*"]}])
    assert house.stage().digest


def test_bytes_that_change_after_they_were_verified(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is overwritten between the check and the copy: nothing unsigned is kept."""
    house.sign()
    check = SignaturePolicy.check

    def swapped(self: SignaturePolicy, *args: object) -> bool:
        found = check(self, *args)  # type: ignore[arg-type]
        edit_last_value(house.folder)
        return found

    monkeypatch.setattr(SignaturePolicy, "check", swapped)
    house.refuses(Reason.BAD_SIGNATURE, "changed after")


def edit_last_value(folder: Path) -> None:
    """In place, another finite value."""
    with (folder / WEIGHTS_FILE).open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        last = file.read(4)
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0" if last != b"\0\0\0\0" else b"\0\0\x80\x3f")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_keys_file_that_others_may_read(house: House, mode: int) -> None:
    house.keys.chmod(mode)
    with pytest.raises(SigningKeysError, match="chmod 600"):
        signing_keys.load(house.keys)


@pytest.mark.parametrize(
    "keys",
    [
        [{"id": "a", "secret": "short", "adapters": ["*"]}],
        [{"id": "a b", "secret": SECRET, "adapters": ["*"]}],
        [{"id": "a", "secret": SECRET, "adapters": []}],
        [{"id": "a", "secret": SECRET, "adapters": ["FIN*"]}],
        [{"id": "a", "secret": SECRET, "adapters": ["*"], "other": 1}],
        [{"id": "a", "secret": SECRET, "adapters": ["*"]}] * 2,
    ],
)
def test_wrong_keys_files(house: House, keys: list[dict[str, object]]) -> None:
    house.write_keys(keys)
    with pytest.raises(SigningKeysError) as caught:
        signing_keys.load(house.keys)
    assert SECRET not in str(caught.value)


def test_no_keys_no_check(house: House) -> None:
    house.policy = SignaturePolicy()
    assert house.stage().digest


def test_a_copy_of_before_needs_the_signature_too(house: House) -> None:
    """The staged copy of an adapter does not vouch for the adapter."""
    house.sign()
    first = house.stage()
    (house.folder / SIGNATURE_FILE).unlink()
    with pytest.raises(AdapterRejected, match="signed"):
        house.stage()
    with source_folder.opened(first.path, LIMIT) as files:
        assert files.config
