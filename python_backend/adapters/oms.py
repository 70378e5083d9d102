"""``model.sig``: a publisher's signature, by the OpenSSF's Model Signing specification 1.0. Pure.

A Sigstore bundle holds a DSSE envelope, and that an in-toto statement: the name of the signed
folder, then name and sha256 of every file in it. What is read here is not to be believed before
``oms_library.verify`` has found the signature good.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from python_backend import strict_json
from python_backend.adapters import signing
from python_backend.adapters.rejection import shown
from python_backend.adapters.signing import BUNDLE_FILE, FileName, Sha256, bad

#: Largest bundle that is read, bytes.
MAX_BUNDLE_BYTES = 512 << 10
#: The curves that the specification allows, as ``cryptography`` names them.
CURVES = ("secp256r1", "secp384r1", "secp521r1")


@dataclasses.dataclass(frozen=True)
class Bundle:
    """What a ``model.sig`` says.

    Args:
        key_hash: sha256 hex of the public key's PEM text; says which key to try, no more.
        lora_id: the name of the folder that was signed.
        files: sha256 hex by file name.
    """

    key_hash: str
    lora_id: str
    files: dict[str, str]


class _Part(BaseModel):
    # Fields beside these are for others to read, says the specification.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _PublicKey(_Part):
    hint: Sha256


class _Material(_Part):
    publicKey: _PublicKey


class _Signed(_Part):
    sig: str


class _Envelope(_Part):
    payload: str
    payloadType: Literal["application/vnd.in-toto+json"]
    # The library looks at the first one alone.
    signatures: tuple[_Signed] = Field(strict=False)


class _Outer(_Part):
    mediaType: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]
    verificationMaterial: _Material
    dsseEnvelope: _Envelope


class _Subject(_Part):
    name: str = Field(max_length=255)


class _Resource(_Part):
    name: FileName
    algorithm: Literal["sha256"]
    digest: Sha256


class _Serialization(_Part):
    method: Literal["files"]
    hash_type: Literal["sha256"]


class _Predicate(_Part):
    serialization: _Serialization
    resources: tuple[_Resource, ...] = Field(strict=False, max_length=1000)

    @field_validator("resources")
    @classmethod
    def _once(cls, resources: tuple[_Resource, ...]) -> tuple[_Resource, ...]:
        if len({resource.name for resource in resources}) != len(resources):
            raise ValueError("a file is listed twice")
        return resources


class _Statement(_Part):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[_Subject] = Field(strict=False)
    predicateType: Literal["https://model_signing/signature/v1.0"]
    predicate: _Predicate


def read(data: bytes) -> Bundle:
    """What the bundle in ``data`` says.

    Raises:
        AdapterRejected: ``bad_signature``: it is none, or one of a kind that is not taken (shards,
            other hashes, certificates, Sigstore identities).
    """
    if len(data) > MAX_BUNDLE_BYTES:
        raise bad(BUNDLE_FILE, "is too large; sign the adapter again")
    try:
        outer = _Outer.model_validate(strict_json.loads_object(data))
        payload = base64.b64decode(outer.dsseEnvelope.payload, validate=True)
        statement = _Statement.model_validate(strict_json.loads_object(payload))
    except strict_json.StrictJsonError as error:
        raise bad(BUNDLE_FILE, f"is {error}; sign the adapter again") from None
    except binascii.Error:
        raise bad(BUNDLE_FILE, "is not in base64; sign the adapter again") from None
    except ValidationError as error:
        where = shown(".".join(str(part) for part in error.errors()[0]["loc"]))
        raise bad(
            BUNDLE_FILE,
            f"has a wrong or unknown value at {where}; sign again with an elliptic-curve key, by "
            "files and sha256",
        ) from None
    return Bundle(
        outer.verificationMaterial.publicKey.hint,
        statement.subject[0].name,
        {resource.name: resource.digest for resource in statement.predicate.resources},
    )


def compare(bundle: Bundle, lora_id: str, found: Mapping[str, str]) -> None:
    """Returns if the folder holds exactly the files of the bundle, under the name it was signed.

    Args:
        found: sha256 hex by name of every file but the bundle itself.

    Raises:
        AdapterRejected: ``bad_signature``, naming the first file that is extra, missing, edited.
    """
    if bundle.lora_id != lora_id:
        signed_for = shown(bundle.lora_id)
        raise bad(BUNDLE_FILE, f"is for {signed_for}; sign the adapter under its name")
    signing.compare(bundle.files, found)


def public_key(pem: str) -> tuple[str, str]:
    """A public key's PEM text as everybody writes it, and the sha256 hex of that.

    Raises:
        ValueError: it is no public key on one of ``CURVES``.
    """
    # Not at the start: most keys files hold no public keys.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_public_key(pem.encode("ascii"))
    except (ValueError, UnicodeError):
        raise ValueError("not a public key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise ValueError(f"not an elliptic-curve key of {', '.join(CURVES)}")
    encoded = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded.decode("ascii"), hashlib.sha256(encoded).hexdigest()
