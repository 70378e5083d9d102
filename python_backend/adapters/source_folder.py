"""A folder that someone else may change while it is read: its files, opened once, no links."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from python_backend.adapters import shards
from python_backend.adapters.peft_config import CONFIG_FILE, MAX_CONFIG_BYTES
from python_backend.adapters.rejection import AdapterRejected, Reason, shown
from python_backend.adapters.shards import INDEX_FILE, MAX_INDEX_BYTES, Joined
from python_backend.adapters.weights import WEIGHTS_FILE

_BLOCK_BYTES = 1 << 20
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclasses.dataclass(frozen=True)
class SourceFiles:
    """The configuration's bytes and open descriptors of the weights and of the folder.

    Weights in several files are read through ``joined``, as one; ``weights_fd`` is -1 then.
    """

    config: bytes
    weights_fd: int
    folder_fd: int
    max_file_bytes: int
    joined: Joined | None = None

    def blocks(self) -> Iterator[bytes]:
        """The weights from the start, in blocks.

        Raises:
            AdapterRejected: ``unreadable``, or ``too_large`` if the file has grown meanwhile.
        """
        if self.joined is not None:
            yield from self.joined.blocks()
            return
        position = 0
        while block := _read_at(self.weights_fd, position, WEIGHTS_FILE):
            position += len(block)
            if position > self.max_file_bytes:
                raise _too_large(WEIGHTS_FILE, position, self.max_file_bytes)
            yield block

    def digest(self) -> tuple[int, bytes]:
        """Size in bytes and sha256 of the weights. Raises as ``blocks``."""
        if self.joined is not None:
            return self.joined.digest()
        size_bytes, sha256 = 0, hashlib.sha256()
        for block in self.blocks():
            size_bytes += len(block)
            sha256.update(block)
        return size_bytes, sha256.digest()

    def manifest(self, size_bytes: int, sha256: bytes) -> dict[str, tuple[int, str]]:
        """(size, sha256 hex) by name of the files that were read; the arguments are what
        ``digest`` has just returned."""
        weights = {WEIGHTS_FILE: (size_bytes, sha256.hex())}
        if self.joined is not None:
            weights = self.joined.files
        return {CONFIG_FILE: (len(self.config), hashlib.sha256(self.config).hexdigest()), **weights}


@contextlib.contextmanager
def opened(folder: Path, max_file_bytes: int) -> Iterator[SourceFiles]:
    """The files of ``folder`` that are served; others are ignored, but pickles are refused.

    Raises:
        AdapterRejected: ``not_a_folder``, ``symlink``, ``unreadable``, ``pickle``,
            ``missing_config``, ``missing_weights``, ``too_large``, or as ``shards.Joined``.
    """
    with contextlib.ExitStack() as stack:
        folder_fd = _open_folder(folder)
        stack.callback(os.close, folder_fd)
        names = _names(folder_fd)
        config_fd = _open_file(folder_fd, CONFIG_FILE, Reason.MISSING_CONFIG, MAX_CONFIG_BYTES)
        stack.callback(os.close, config_fd)
        joined, weights_fd = None, -1
        if INDEX_FILE in names:
            joined = _joined(folder_fd, WEIGHTS_FILE in names, max_file_bytes, stack)
        else:
            weights_fd = _open_file(folder_fd, WEIGHTS_FILE, Reason.MISSING_WEIGHTS, max_file_bytes)
            stack.callback(os.close, weights_fd)
        config = _read_at(config_fd, 0, CONFIG_FILE, MAX_CONFIG_BYTES + 1)
        yield SourceFiles(config, weights_fd, folder_fd, max_file_bytes, joined)


def _joined(folder_fd: int, whole_too: bool, max_bytes: int, stack: contextlib.ExitStack) -> Joined:
    """The weights that an index file describes."""
    if whole_too:
        raise AdapterRejected(
            Reason.BAD_INDEX, f"both {INDEX_FILE} and {WEIGHTS_FILE} are there; delete one of them."
        )
    index_fd = _open_file(folder_fd, INDEX_FILE, Reason.MISSING_WEIGHTS, MAX_INDEX_BYTES)
    stack.callback(os.close, index_fd)
    index = b"".join(_all(index_fd, INDEX_FILE, MAX_INDEX_BYTES + 1))
    parts: dict[str, int] = {}
    for name in sorted(set(shards.parse_index(index).values())):
        parts[name] = _open_file(folder_fd, name, Reason.MISSING_WEIGHTS, max_bytes)
        stack.callback(os.close, parts[name])
    joined = Joined(index, parts, lambda fd, at, count: _read_at(fd, at, "a part", count))
    if joined.size_bytes > max_bytes:
        raise _too_large(INDEX_FILE, joined.size_bytes, max_bytes)
    return joined


def _all(file_fd: int, name: str, most: int) -> Iterator[bytes]:
    position = 0
    while position < most and (block := _read_at(file_fd, position, name, most - position)):
        position += len(block)
        yield block


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if folder.is_symlink():
            raise AdapterRejected(
                Reason.SYMLINK, "the folder is a symbolic link; copy the files themselves."
            ) from None
        if error.errno in (errno.ENOTDIR, errno.ENOENT):
            raise AdapterRejected(
                Reason.NOT_A_FOLDER, "there is no folder of that name; an adapter is a folder."
            ) from None
        raise _unreadable("the folder", error) from None


def _names(folder_fd: int) -> list[str]:
    """The names in the folder, none of them a pickle's."""
    try:
        names = sorted(os.listdir(folder_fd))
    except OSError as error:
        raise _unreadable("the folder", error) from None
    for name in names:
        if name.lower().endswith(_PICKLES):
            raise AdapterRejected(
                Reason.PICKLE,
                f"{shown(name)} is a pickle by its name and can run code when opened; save the "
                "adapter with safe_serialization=True and delete this file.",
            )
    return names


def _open_file(folder_fd: int, name: str, missing: Reason, max_bytes: int) -> int:
    try:
        # Without O_NONBLOCK a named pipe would hold the librarian for ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file_fd = os.open(name, flags, dir_fd=folder_fd)
    except FileNotFoundError:
        raise AdapterRejected(missing, f"{name} is missing; copy the whole adapter.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise AdapterRejected(
                Reason.SYMLINK, f"{name} is a symbolic link; copy the file itself (cp -L)."
            ) from None
        raise _unreadable(name, error) from None
    status = os.fstat(file_fd)
    if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
        return file_fd
    os.close(file_fd)
    if not stat.S_ISREG(status.st_mode):
        raise AdapterRejected(Reason.UNREADABLE, f"{name} is not a regular file.")
    raise _too_large(name, status.st_size, max_bytes)


def _read_at(file_fd: int, position: int, name: str, count: int = _BLOCK_BYTES) -> bytes:
    try:
        return os.pread(file_fd, count, position)
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(what: str, error: OSError) -> AdapterRejected:
    problem = os.strerror(error.errno or 0).lower()
    return AdapterRejected(Reason.UNREADABLE, f"{what} cannot be read: {problem}.")


def _too_large(name: str, size_bytes: int, max_bytes: int) -> AdapterRejected:
    cure = "" if name == CONFIG_FILE else "; raise adapters.max_file_bytes if it is meant"
    return AdapterRejected(
        Reason.TOO_LARGE, f"{name}: {size_bytes} bytes, above the limit of {max_bytes}{cure}."
    )
