"""Whether an opened folder is what its signature says, for the bytes that will be served."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from python_backend.adapters import signing
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.signing import SIGNATURE_FILE
from python_backend.adapters.signing_keys import KeyFile

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
    keys: KeyFile | None = None
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
        if SIGNATURE_FILE not in names:
            if self.required(lora_id):
                raise AdapterRejected(
                    Reason.UNSIGNED,
                    f"{SIGNATURE_FILE} is missing, and this server serves the adapter only "
                    "signed; sign it (python -m tools sign).",
                )
            return False
        data = _read(folder_fd, SIGNATURE_FILE, signing.MAX_SIGNATURE_BYTES)
        signature = signing.read(data)
        find = self.keys.current().find
        signing.verify(signature, find, lora_id, self.clock())
        found = dict(read)
        signed = {file.name for file in signature.files}
        for name in names:
            if name in found or name == SIGNATURE_FILE:
                continue
            # What was not signed is refused for that alone, however large it is.
            found[name] = _hash(folder_fd, name) if name in signed else (0, "")
        signing.compare(signature, found)
        return True


UNSIGNED = SignaturePolicy()


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


def manifest(folder: Path) -> tuple[signing.SignedFile, ...]:
    """Every file of ``folder`` but the signature, for whoever signs it.

    Raises:
        AdapterRejected: ``bad_signature``: a link, a folder, or a file that cannot be read.
        OSError: the folder cannot be opened.
    """
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = []
        for name in sorted(os.listdir(folder_fd)):
            if name == SIGNATURE_FILE:
                continue
            with os.fdopen(_open(folder_fd, name), "rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size = os.fstat(file.fileno()).st_size
            found.append(signing.SignedFile(name=name, size=size, sha256=sha256))
        return tuple(found)
    finally:
        os.close(folder_fd)
