"""Whether an opened folder is what its signature says, for the bytes that will be served."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from python_backend.adapters import oms, oms_library, signing
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.signing import BUNDLE_FILE, SIGNATURE_FILE
from python_backend.adapters.signing_keys import Keys

#: Largest file beside the weights that is hashed for a signature, bytes.
_MAX_OTHER_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class SignaturePolicy:
    """Which adapters must be signed, and by which keys.

    Args:
        require: globs over lora_ids; those must be signed. Others may be, and then must be right.
        keys: None where nothing is verified at all.
        clock: Unix seconds; keys and signatures expire by the wall clock.
    """

    require: tuple[str, ...] = ()
    keys: Keys | None = None
    clock: Callable[[], float] = time.time

    def required(self, lora_id: str) -> bool:
        """Whether this adapter must be signed."""
        return any(fnmatch.fnmatchcase(lora_id, glob) for glob in self.require)

    def check(self, lora_id: str, folder_fd: int, read: Mapping[str, tuple[int, str]]) -> bool:
        """Whether a good signature covers the folder; False where there is none and need be none.

        Args:
            folder_fd: the opened folder.
            read: (size, sha256 hex) by name of the files that are served; they are not read
                again here.

        Raises:
            AdapterRejected: ``unsigned``, ``bad_signature`` or ``signing_key``, naming the file.
        """
        if self.keys is None:
            return False
        names = sorted(os.listdir(folder_fd))
        kinds = [name for name in (SIGNATURE_FILE, BUNDLE_FILE) if name in names]
        if not kinds:
            if self.required(lora_id):
                raise AdapterRejected(
                    Reason.UNSIGNED,
                    f"{SIGNATURE_FILE} or {BUNDLE_FILE} is missing, and this server serves the "
                    "adapter only signed; sign it (python -m tools sign).",
                )
            return False
        if len(kinds) > 1:
            raise signing.bad(BUNDLE_FILE, f"lies beside {SIGNATURE_FILE}; remove one of them")
        others = [name for name in names if name not in read and name not in kinds]
        if kinds == [SIGNATURE_FILE]:
            self._check_secret(self.keys, lora_id, folder_fd, read, others)
        else:
            self._check_public(self.keys, lora_id, folder_fd, read, others)
        return True

    def _check_secret(
        self,
        keys: Keys,
        lora_id: str,
        folder_fd: int,
        read: Mapping[str, tuple[int, str]],
        others: Iterable[str],
    ) -> None:
        data = _read(folder_fd, SIGNATURE_FILE, signing.MAX_SIGNATURE_BYTES)
        signature = signing.read(data)
        signing.verify(signature, keys.current().find, lora_id, self.clock())
        signed = {file.name: (file.size, file.sha256) for file in signature.files}
        signing.compare(signed, {**read, **_digests(folder_fd, others, signed.keys())})

    def _check_public(
        self,
        keys: Keys,
        lora_id: str,
        folder_fd: int,
        read: Mapping[str, tuple[int, str]],
        others: Iterable[str],
    ) -> None:
        data = _read(folder_fd, BUNDLE_FILE, oms.MAX_BUNDLE_BYTES)
        bundle = oms.read(data)
        public_key = keys.current().find_public(bundle.key_hash, lora_id, self.clock())
        digests = {**read, **_digests(folder_fd, others, bundle.files.keys())}
        found = {name: sha256 for name, (_, sha256) in digests.items()}
        good = oms_library.verify(data, public_key, lora_id, found)
        # Both have to agree; this one names the file.
        oms.compare(bundle, lora_id, found)
        if not good:
            raise signing.bad(BUNDLE_FILE, "is for other files; sign the adapter again")


UNSIGNED = SignaturePolicy()


def _digests(
    folder_fd: int, names: Iterable[str], signed: Collection[str]
) -> dict[str, tuple[int, str]]:
    """(size, sha256 hex) by name. What was not signed is refused for that alone, however large."""
    return {name: _hash(folder_fd, name) if name in signed else (0, "") for name in names}


def _open(folder_fd: int, name: str) -> int:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file_fd = os.open(name, flags, dir_fd=folder_fd)
    except OSError:
        raise signing.bad(name, "is a symbolic link or cannot be read") from None
    if not stat.S_ISREG(os.fstat(file_fd).st_mode):
        os.close(file_fd)
        raise signing.bad(name, "is not a regular file")
    return file_fd


def _read(folder_fd: int, name: str, most: int) -> bytes:
    with os.fdopen(_open(folder_fd, name), "rb") as file:
        return file.read(most + 1)


def _hash(folder_fd: int, name: str) -> tuple[int, str]:
    size_bytes, sha256 = 0, hashlib.sha256()
    with os.fdopen(_open(folder_fd, name), "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            size_bytes += len(block)
            sha256.update(block)
            if size_bytes > _MAX_OTHER_BYTES:
                raise signing.bad(name, f"is larger than {_MAX_OTHER_BYTES} bytes; remove it")
    return size_bytes, sha256.hexdigest()


def manifest(folder: Path, leave_out: str = SIGNATURE_FILE) -> tuple[signing.SignedFile, ...]:
    """Every file of ``folder`` but ``leave_out``, for whoever signs it.

    Raises:
        AdapterRejected: ``bad_signature``: a link, a folder, or a file that cannot be read.
        OSError: the folder cannot be opened.
    """
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = []
        for name in sorted(os.listdir(folder_fd)):
            if name == leave_out:
                continue
            if name in (SIGNATURE_FILE, BUNDLE_FILE):
                raise signing.bad(name, "is another signature; remove it first")
            with os.fdopen(_open(folder_fd, name), "rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size = os.fstat(file.fileno()).st_size
            found.append(signing.SignedFile(name=name, size=size, sha256=sha256))
        return tuple(found)
    finally:
        os.close(folder_fd)
