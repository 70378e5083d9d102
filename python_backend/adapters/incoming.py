"""Folders on their way into the adapter root, and out of it: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from python_backend.adapters.rejection import AdapterRejected, Reason, shown
from python_backend.errors import InvalidArgument

#: Hidden, so that the librarian takes none of them for an adapter.
_PREFIX = ".admin-"
_BLOCK_BYTES = 1 << 20
#: Most files of one adapter, and the bytes that those beside the weights may have.
_MAX_FILES, _MAX_MORE_BYTES = 1000, 64 << 20
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NOT_ALLOWED = "not allowed by settings (adapters.add_from)"


def clean(root: Path) -> None:
    """Removes what a killed server left half done."""
    for path in root.glob(f"{_PREFIX}*"):
        discard(path)


def allowed_source(source: str, add_from: Sequence[Path]) -> Path:
    """The folder that ``source`` names, if it lies below one of ``add_from``.

    Symbolic links are followed first: what counts is where the folder really lies. Whether a
    folder that is not allowed exists is not told.

    Raises:
        InvalidArgument: it is not allowed.
    """
    text = source
    if scheme := _SCHEME.match(source):
        if scheme[1].lower() != "file":
            raise InvalidArgument("source", _NOT_ALLOWED)
        text = re.sub(r"\A//(localhost)?(?=/)", "", source[scheme.end() :])
    try:
        # Triton's stub believes that file names are ASCII; as bytes of UTF-8 any name passes.
        real = Path(os.path.realpath(os.fsdecode(text.encode("utf-8"))))
    except (OSError, UnicodeError, ValueError):
        raise InvalidArgument("source", _NOT_ALLOWED) from None
    if not os.path.isabs(text) or not _below(real, add_from):
        raise InvalidArgument("source", _NOT_ALLOWED)
    return real


def _below(real: Path, add_from: Sequence[Path]) -> bool:
    return any(Path(os.path.realpath(folder)) in real.parents for folder in add_from)


@contextlib.contextmanager
def copied(
    source: Path, root: Path, add_from: Sequence[Path], max_file_bytes: int
) -> Iterator[Path]:
    """A hidden copy of ``source`` in ``root`` for the block, removed behind it if still there.

    Raises:
        AdapterRejected: a link, too many or too large files, or nothing that can be read.
        InvalidArgument: the folder was moved out of ``add_from`` meanwhile.
        OSError: the root cannot be written.
    """
    copy = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    try:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            folder_fd = os.open(source, flags)
        except OSError:
            raise AdapterRejected(
                Reason.NOT_A_FOLDER, "there is no folder of that name; an adapter is a folder."
            ) from None
        try:
            # A parent may have become a link since the name was resolved.
            if not _below(Path(os.readlink(f"/proc/self/fd/{folder_fd}")), add_from):
                raise InvalidArgument("source", _NOT_ALLOWED)
            _copy(folder_fd, copy, max_file_bytes + _MAX_MORE_BYTES)
        finally:
            os.close(folder_fd)
        copy.chmod(0o755)
        yield copy
    finally:
        if copy.exists():
            shutil.rmtree(copy, ignore_errors=True)


@contextlib.contextmanager
def arriving(root: Path) -> Iterator[Path]:
    """A hidden, empty folder in ``root`` to fetch into; removed if the block raises.

    Raises:
        OSError: the root cannot be written.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    try:
        yield folder
        folder.chmod(0o755)
    except BaseException:
        discard(folder)
        raise


def _copy(folder_fd: int, copy: Path, left_bytes: int) -> None:
    names = sorted(os.listdir(folder_fd))
    if len(names) > _MAX_FILES:
        raise AdapterRejected(Reason.TOO_LARGE, f"more than {_MAX_FILES} files.")
    for name in names:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file_fd = os.open(name, flags, dir_fd=folder_fd)
        except OSError:
            raise AdapterRejected(
                Reason.UNREADABLE, f"{shown(name)} is a symbolic link or cannot be read."
            ) from None
        if not stat.S_ISREG(os.fstat(file_fd).st_mode):
            os.close(file_fd)
            continue
        with os.fdopen(file_fd, "rb") as file, open(copy / name, "xb") as target:
            while block := file.read(_BLOCK_BYTES):
                left_bytes -= len(block)
                if left_bytes < 0:
                    raise AdapterRejected(
                        Reason.TOO_LARGE,
                        "the folder is above the limit; raise adapters.max_file_bytes if it "
                        "is meant.",
                    )
                target.write(block)
            target.flush()
            os.fsync(target.fileno())


def put(copy: Path, final: Path) -> None:
    """Makes ``copy`` the folder ``final``; one that is there is moved aside first.

    Raises:
        OSError: nothing has changed.
    """
    aside = take(final)
    try:
        os.rename(copy, final)
    except OSError:
        if aside is not None:
            os.rename(aside, final)
            os.rmdir(aside.parent)
        raise
    if aside is not None:
        discard(aside)


def take(final: Path) -> Path | None:
    """Hides ``final`` in one step; where it lies now, or None if there was nothing.

    Raises:
        OSError: it cannot be moved.
    """
    if not os.path.lexists(final):
        return None
    hidden = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=final.parent))
    try:
        os.rename(final, hidden / final.name)
    except OSError:
        os.rmdir(hidden)
        raise
    return hidden / final.name


def discard(path: Path) -> None:
    """Removes what was hidden; what cannot be removed now is removed at the next start."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
    if path.parent.name.startswith(_PREFIX):
        with contextlib.suppress(OSError):
            path.parent.rmdir()
