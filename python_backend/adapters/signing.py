"""``adapter.sig.json``: who vouches for which files. Pure: keys and time are arguments.

    payload   = fields, each 4-byte big-endian length + UTF-8 bytes: the format's name, algorithm,
                key id, lora_id, created, expires, number of files, then name, size and sha256 of
                each, by name
    signature = HMAC-SHA256(key, payload)

The lora_id is signed too: a good adapter copied under another name does not pass.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from python_backend import strict_json
from python_backend.adapters.rejection import AdapterRejected, Reason, shown

SIGNATURE_FILE = "adapter.sig.json"
#: A publisher's own, by public key (see ``oms``); the name that the OpenSSF's tool gives it.
BUNDLE_FILE = "model.sig"
ALGORITHM = "hmac-sha256"
#: Largest signature file that is read, bytes.
MAX_SIGNATURE_BYTES = 256 << 10
_FORMAT = "lora-adapter-signature-1"


def _plain(name: str) -> str:
    if PurePosixPath(name).name != name or name in (".", "..", SIGNATURE_FILE, BUNDLE_FILE):
        raise ValueError("not the name of a file in the adapter's folder")
    return name


#: A signed file: one of the adapter's folder, and no signature itself.
FileName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_plain)]

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SignedFile(BaseModel):
    """One file of the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: FileName
    size: int = Field(ge=0)
    sha256: Sha256


class Signature(BaseModel):
    """The content of ``adapter.sig.json``. Times are Unix seconds; ``signature`` is hex."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1] = 1
    algorithm: Literal["hmac-sha256"] = "hmac-sha256"
    key_id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    lora_id: str = Field(max_length=64)
    created: int = Field(ge=0)
    expires: int | None = Field(default=None, ge=0)
    files: tuple[SignedFile, ...] = Field(strict=False, max_length=1000)
    signature: str = Field(default="", pattern=r"^[0-9a-f]*$")

    @field_validator("files")
    @classmethod
    def _once(cls, files: tuple[SignedFile, ...]) -> tuple[SignedFile, ...]:
        if len({file.name for file in files}) != len(files):
            raise ValueError("a file is listed twice")
        return tuple(sorted(files, key=lambda file: file.name))

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(), indent=2) + "\n"

    def payload(self) -> bytes:
        """The canonical bytes that are signed."""
        fields = [_FORMAT, self.algorithm, self.key_id, self.lora_id, str(self.created)]
        fields += ["" if self.expires is None else str(self.expires), str(len(self.files))]
        for file in self.files:
            fields += [file.name, str(file.size), file.sha256]
        out = bytearray()
        for field in fields:
            raw = field.encode("utf-8")
            out += struct.pack(">I", len(raw)) + raw
        return bytes(out)


def sign(unsigned: Signature, secret: bytes) -> Signature:
    """``unsigned`` with its HMAC."""
    return unsigned.model_copy(update={"signature": _hmac(secret, unsigned.payload())})


def _hmac(secret: bytes, payload: bytes) -> str:
    return hmac.new(secret, payload, hashlib.sha256).hexdigest()


def read(data: bytes) -> Signature:
    """The signature in ``data``.

    Raises:
        AdapterRejected: ``bad_signature``: it is not one.
    """
    if len(data) > MAX_SIGNATURE_BYTES:
        raise bad(SIGNATURE_FILE, "is too large; sign the adapter again")
    try:
        return Signature.model_validate(strict_json.loads_object(data))
    except strict_json.StrictJsonError as error:
        raise bad(SIGNATURE_FILE, f"is {error}; sign the adapter again") from None
    except ValidationError as error:
        where = shown(".".join(str(part) for part in error.errors()[0]["loc"]))
        raise bad(SIGNATURE_FILE, f"has a wrong value at {where}; sign it again") from None


#: The secret for (key id, lora_id, Unix seconds); raises ``AdapterRejected`` where there is none.
FindKey = Callable[[str, str, float], bytes]


def verify(signature: Signature, find_key: FindKey, lora_id: str, now_s: float) -> None:
    """Returns if a key that is good for ``lora_id`` now vouches for the manifest.

    Raises:
        AdapterRejected: ``signing_key`` for a key that is not there, not for this adapter or
            expired; ``bad_signature`` for all else.
    """
    secret = find_key(signature.key_id, lora_id, now_s)
    if not hmac.compare_digest(signature.signature, _hmac(secret, signature.payload())):
        raise bad(SIGNATURE_FILE, "does not fit its own content or its key; sign it again")
    if signature.lora_id != lora_id:
        signed_for = shown(signature.lora_id)
        raise bad(SIGNATURE_FILE, f"is for {signed_for}; sign the adapter under its name")
    if signature.expires is not None and now_s >= signature.expires:
        raise bad(SIGNATURE_FILE, "has expired; sign the adapter again")


def compare(signed: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Returns if the folder holds exactly the signed files, as they were signed.

    Args:
        signed, found: what tells the content, by name; of every file but the signature itself.

    Raises:
        AdapterRejected: ``bad_signature``, naming the first file that is extra, missing, edited.
    """
    for name in sorted(found.keys() - signed.keys()):
        raise bad(name, "is not in the signature; remove it or sign the adapter again")
    for name in sorted(signed.keys() - found.keys()):
        raise bad(name, "is signed but missing; copy the whole adapter")
    for name, content in sorted(found.items()):
        if content != signed[name]:
            raise bad(name, "is not as it was signed; restore it or sign the adapter again")


def bad(name: str, problem: str) -> AdapterRejected:
    """The refusal of one file."""
    quoted = name if name in (SIGNATURE_FILE, BUNDLE_FILE) else shown(name)
    return AdapterRejected(Reason.BAD_SIGNATURE, f"{quoted} {problem}.")
