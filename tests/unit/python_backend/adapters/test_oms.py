"""An adapter that its publisher signed with a key of his own is served as he signed it, or not."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from python_backend.adapters import oms, oms_library, seal, signing, signing_keys
from python_backend.adapters.rejection import Reason
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import BUNDLE_FILE, SIGNATURE_FILE
from python_backend.adapters.signing_keys import SigningKeysError
from tests.badadapters.files import CONFIG_FILE, WEIGHTS_FILE
from tests.unit.python_backend.adapters.publisher_house import House, pair
from tests.unit.python_backend.adapters.signing_house import NAME, NOW, edit_weights


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_what_a_publisher_signed_is_staged(house: House, curve: ec.EllipticCurve) -> None:
    house.public = pair(house.private, curve)
    house.trust()
    house.sign()
    copy = house.stage()
    assert sorted(path.name for path in copy.path.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]


def link(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "config": (lambda f: (f / CONFIG_FILE).open("ab").write(b" "), CONFIG_FILE),
    "weights": (edit_weights, WEIGHTS_FILE),
    "another file": (lambda f: (f / "README.md").write_text("about me"), "README.md"),
    "extra": (lambda f: (f / "extra.txt").write_text("x"), "extra.txt"),
    "left out by git": (lambda f: (f / ".gitattributes").write_text("x"), ".gitattributes"),
    "extra folder": (lambda f: (f / "sub").mkdir(), "sub"),
    "missing": (lambda f: (f / "README.md").unlink(), "README.md"),
    "link": (lambda f: link(f, "README.md"), "README.md"),
    "linked bundle": (lambda f: link(f, BUNDLE_FILE), BUNDLE_FILE),
    "two kinds": (lambda f: (f / SIGNATURE_FILE).write_text("{}"), SIGNATURE_FILE),
}


@pytest.mark.parametrize("kind", EDITS)
def test_what_was_edited_is_named(house: House, kind: str) -> None:
    house.sign()
    edit, name = EDITS[kind]
    edit(house.folder)
    house.refuses(Reason.BAD_SIGNATURE, name)


def test_unsigned_ones_and_other_names(house: House) -> None:
    house.refuses(Reason.UNSIGNED, BUNDLE_FILE)
    house.sign()
    house.refuses(Reason.BAD_SIGNATURE, NAME, lora_id="fin_risk_v2")


def test_keys_that_may_not(house: House, tmp_path: Path) -> None:
    other = pair(tmp_path / "other")
    house.sign(tmp_path / "other")
    house.refuses(Reason.SIGNING_KEY, "not in the server's keys file")
    # The hint names the trusted key; the signature is the other's.
    house.change(
        lambda outer, _: outer["verificationMaterial"]["publicKey"].update(
            hint=oms.public_key(house.public)[1]
        )
    )
    house.refuses(Reason.BAD_SIGNATURE, "does not fit")
    house.sign()
    house.trust(adapters=["svc_*"])
    house.refuses(Reason.SIGNING_KEY, "'acme'", "not for this adapter")
    house.trust(not_after=datetime.datetime.fromtimestamp(NOW, datetime.UTC))
    house.refuses(Reason.SIGNING_KEY, "'acme'", "expired")
    house.trust(public_key=other)
    house.refuses(Reason.SIGNING_KEY, "not in the server's keys file")


CHANGES: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "name": lambda _, statement: statement["subject"][0].update(name="fin_risk_v2"),
    "fewer files": lambda _, statement: statement["predicate"]["resources"].pop(),
    "another digest": lambda _, statement: statement["predicate"]["resources"][0].update(
        digest="00" * 32
    ),
    "left out": lambda _, statement: statement["predicate"]["serialization"].update(
        ignore_paths=["extra.txt"]
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_all_of_the_statement_is_signed(house: House, kind: str) -> None:
    house.sign()
    house.change(CHANGES[kind])
    house.refuses(Reason.BAD_SIGNATURE, BUNDLE_FILE, "does not fit")


WRONG: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "media type": lambda outer, _: outer.update(mediaType="application/json"),
    "certificate": lambda outer, _: outer.update(verificationMaterial={"certificate": {}}),
    "no hint": lambda outer, _: outer["verificationMaterial"].update(publicKey={}),
    "payload type": lambda outer, _: outer["dsseEnvelope"].update(payloadType="text/plain"),
    "no signature": lambda outer, _: outer["dsseEnvelope"].update(signatures=[]),
    "two signatures": lambda outer, _: outer["dsseEnvelope"]["signatures"].append({"sig": "AA=="}),
    "old predicate": lambda _, s: s.update(predicateType="https://model_signing/Digests/v0.1"),
    "shards": lambda _, s: s["predicate"]["serialization"].update(method="shards", shard_size=9),
    "other hash": lambda _, s: s["predicate"]["resources"][0].update(algorithm="blake2b"),
    "path": lambda _, s: s["predicate"]["resources"][0].update(name="../x"),
    "itself": lambda _, s: s["predicate"]["resources"][0].update(name=BUNDLE_FILE),
    "twice": lambda _, s: s["predicate"]["resources"].append(s["predicate"]["resources"][0]),
    "two subjects": lambda _, s: s["subject"].append({"name": "x", "digest": {}}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_kinds_that_are_not_taken(house: House, kind: str) -> None:
    house.sign()
    house.change(WRONG[kind])
    house.refuses(Reason.BAD_SIGNATURE, BUNDLE_FILE)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"mediaType": 1, "mediaType": 1}', "\xff", "x" * 600_000]
)
def test_what_is_no_bundle(house: House, text: str) -> None:
    house.bundle.write_bytes(text.encode("latin-1"))
    house.refuses(Reason.BAD_SIGNATURE, BUNDLE_FILE)


def test_a_payload_in_bad_base64(house: House) -> None:
    house.sign()
    outer = json.loads(house.bundle.read_text())
    outer["dsseEnvelope"]["payload"] += "*"
    house.bundle.write_text(json.dumps(outer))
    house.refuses(Reason.BAD_SIGNATURE, BUNDLE_FILE)


def test_bytes_that_change_after_they_were_verified(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.sign()
    check = SignaturePolicy.check

    def swapped(self: SignaturePolicy, *args: object) -> bool:
        found = check(self, *args)  # type: ignore[arg-type]
        with (house.folder / WEIGHTS_FILE).open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\x80\x3f")
        return found

    monkeypatch.setattr(SignaturePolicy, "check", swapped)
    house.refuses(Reason.BAD_SIGNATURE, "changed after")


def test_files_that_change_while_the_package_looks(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package reads no file of the folder: what is judged is what was read before."""
    house.sign()
    verify = oms_library.verify

    def gone(*args: Any) -> bool:
        shutil.rmtree(house.folder)
        return verify(*args)

    monkeypatch.setattr(oms_library, "verify", gone)
    assert house.stage().digest


def test_the_package_itself_agrees(house: House) -> None:
    """What is signed here its own command takes, and what that signs is taken here."""
    house.sign()
    public = house.private.with_suffix(".pub")
    public.write_text(house.public)
    tool = [sys.executable, "-m", "model_signing"]
    one = [str(house.folder), "--signature", str(house.bundle)]
    check = [*tool, "verify", "key", *one, "--public_key", str(public)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    house.bundle.unlink()
    make = [*tool, "sign", "key", *one, "--private_key", str(house.private)]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert house.stage().digest


def test_the_package_is_imported_late() -> None:
    """Neither the package nor Sigstore's is there before a bundle is looked at."""
    look = (
        "import sys, python_backend.adapters.keeper; "
        "print([name for name in ('model_signing', 'sigstore', 'tuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def edwards() -> str:
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = serialization.Encoding.PEM
    return key.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.mark.parametrize("kind", ["none", "text", "other kind", "other curve", "private", "both"])
def test_wrong_public_keys(house: House, tmp_path: Path, kind: str) -> None:
    kinds: dict[str, dict[str, object]] = {
        "none": {"public_key": None},
        "text": {"public_key": "x"},
        "other kind": {"public_key": edwards()},
        "other curve": {"public_key": pair(tmp_path / "k1", ec.SECP256K1())},
        "private": {"public_key": house.private.read_text()},
        "both": {"secret": "11" * 32},
    }
    house.trust(**kinds[kind])
    with pytest.raises(SigningKeysError):
        signing_keys.load(house.keys)


def test_a_public_key_signs_no_manifest(house: House) -> None:
    """A secret's signature under a public key's id: the text of the key is no secret."""
    unsigned = signing.Signature(
        key_id="acme", lora_id=NAME, created=int(NOW), files=seal.manifest(house.folder)
    )
    signed = signing.sign(unsigned, house.public.encode())
    (house.folder / SIGNATURE_FILE).write_text(signed.to_json())
    house.refuses(Reason.SIGNING_KEY, "public")
