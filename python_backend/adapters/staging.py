"""Verified, immutable, content-addressed copies: the bytes that were judged are those served.

An adapter is copied under a temporary name, the copy is judged, and only then renamed to
``<staged_root>/<digest>``. Whatever happens to the source meanwhile or later, only the copy counts.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from python_backend.adapters import signing, source_folder, validation
from python_backend.adapters.peft_config import CONFIG_FILE
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.seal import UNSIGNED, SignaturePolicy
from python_backend.adapters.source_folder import SourceFiles
from python_backend.adapters.target import Target
from python_backend.adapters.validation import ValidatedAdapter
from python_backend.adapters.weights import WEIGHTS_FILE

#: What the names of unfinished copies begin with.
TEMPORARY = ".tmp-"
_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class StagedAdapter:
    """A copy that the engine may load.

    Args:
        digest: sha256 hex of the adapter's content (see ``content_digest``).
        path: the copy's absolute folder, read-only.
        rank: the largest rank of a module.
        size_bytes: size of the weight file.
    """

    digest: str
    path: Path
    rank: int
    size_bytes: int


def content_digest(files: dict[str, tuple[int, bytes]]) -> str:
    """sha256 hex over a manifest of file name to (size in bytes, sha256).

    Every part is of fixed length or preceded by its length, so no two manifests read alike.
    """
    manifest = hashlib.sha256(b"lora-adapter-1\0")
    for name, (size_bytes, sha256) in sorted(files.items()):
        encoded = name.encode("ascii")
        manifest.update(len(encoded).to_bytes(4, "big") + encoded)
        manifest.update(size_bytes.to_bytes(8, "big") + sha256)
    return manifest.hexdigest()


def is_pinned(folder: Path, sha256: str, max_file_bytes: int) -> bool:
    """Whether ``sha256`` (hex) is the version digest of ``folder``, or that of its weight file.

    Raises:
        AdapterRejected: it cannot be read.
    """
    with source_folder.opened(folder, max_file_bytes) as files:
        size_bytes, found = files.digest()
        return sha256 in (found.hex(), _digest(files.config, size_bytes, found))


def clean(staged_root: Path) -> int:
    """Removes what killed runs left behind; the number of folders removed.

    For the start of the one process that owns ``staged_root``. What cannot be removed stays.
    """
    left = [path for path in staged_root.glob(f"{TEMPORARY}*") if not path.is_symlink()]
    for path in left:
        discard(path)
    return len(left)


def digests(staged_root: Path) -> list[str]:
    """The digests there are copies of."""
    names = [path.name for path in staged_root.glob("[0-9a-f]*")]
    return [name for name in names if len(name) == 64 and not name.strip("0123456789abcdef")]


def stage(
    source: Path,
    staged_root: Path,
    target: Target,
    max_file_bytes: int,
    *,
    lora_id: str = "",
    signatures: SignaturePolicy = UNSIGNED,
) -> StagedAdapter:
    """Copies and judges the adapter in ``source``. Thread-safe.

    A signature is checked on what was read, and a copy is kept only if it holds just that: the
    bytes that were verified are the bytes that are served.

    Raises:
        AdapterRejected: it must not be loaded, cannot be read, or its copy cannot be written
            (``no_space``); nothing is left behind in ``staged_root``.
    """
    with source_folder.opened(source, max_file_bytes) as files:
        try:
            staged_root.mkdir(parents=True, exist_ok=True)
            size_bytes, sha256 = files.digest()
            digest = _digest(files.config, size_bytes, sha256)
            read = files.manifest(size_bytes, sha256)
            signed = signatures.check(lora_id, files.folder_fd, read)
            staged = _reuse(staged_root / digest, files.config, target, max_file_bytes)
            return staged or _copy(files, staged_root, target, digest if signed else "")
        except OSError as error:
            raise _not_written(error) from None


def _digest(config: bytes, size_bytes: int, sha256: bytes) -> str:
    return content_digest(
        {
            CONFIG_FILE: (len(config), hashlib.sha256(config).digest()),
            WEIGHTS_FILE: (size_bytes, sha256),
        }
    )


def _copy(files: SourceFiles, staged_root: Path, target: Target, signed: str) -> StagedAdapter:
    """The new copy; ``signed`` is the digest that a signature vouches for, or empty."""
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=staged_root))
    try:
        size_bytes, sha256 = 0, hashlib.sha256()
        with open(temporary / WEIGHTS_FILE, "xb", buffering=0) as copy:
            for block in files.blocks():
                size_bytes += len(block)
                sha256.update(block)
                _write(copy.fileno(), block)
            os.fsync(copy.fileno())
            os.fchmod(copy.fileno(), 0o444)
        validated = _judge(temporary, files.config, target, files.max_file_bytes)
        with open(temporary / CONFIG_FILE, "xb", buffering=0) as copy:
            _write(copy.fileno(), _config_bytes(validated))
            os.fsync(copy.fileno())
            os.fchmod(copy.fileno(), 0o444)
        temporary.chmod(0o555)
        _sync_folder(temporary)
        # The digest of what was copied, which is not what was hashed before if the source changed.
        final = staged_root / _digest(files.config, size_bytes, sha256.digest())
        if signed and final.name != signed:
            raise signing.bad(WEIGHTS_FILE, "changed after its signature was checked")
        if not _move(temporary, final):
            # Another thread was first, or a broken copy of before lies there.
            staged = _reuse(final, files.config, target, files.max_file_bytes)
            if staged is not None:
                return staged
            os.rename(temporary, final)
        _sync_folder(staged_root)
        return _staged(final, validated)
    finally:
        if temporary.exists():
            discard(temporary)


def _judge(folder: Path, config: bytes, target: Target, max_bytes: int) -> ValidatedAdapter:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    weights_fd = os.open(folder / WEIGHTS_FILE, flags)
    with os.fdopen(weights_fd, "rb", buffering=0) as file:
        return validation.validate(config, file, target, max_bytes)


def _reuse(final: Path, config: bytes, target: Target, max_bytes: int) -> StagedAdapter | None:
    """The copy at ``final`` if it is whole; one that is not is moved away.

    It is judged again, because the engine may have another base model than when it was made.
    """
    if not final.exists():
        return None
    try:
        with source_folder.opened(final, max_bytes) as copy:
            whole = _digest(config, *copy.digest()) == final.name
            if whole:
                validated = _judge(final, config, target, max_bytes)
                if copy.config == _config_bytes(validated):
                    return _staged(final, validated)
    except AdapterRejected:
        if _is_whole(final, config, max_bytes):
            raise
    discard(final)
    return None


def _is_whole(final: Path, config: bytes, max_bytes: int) -> bool:
    """Whether the copy holds the right weights: then it is the adapter that is refused."""
    try:
        with source_folder.opened(final, max_bytes) as copy:
            return _digest(config, *copy.digest()) == final.name
    except AdapterRejected:
        return False


def _staged(final: Path, validated: ValidatedAdapter) -> StagedAdapter:
    # vLLM takes a relative path for the name of a repository on the Hub.
    return StagedAdapter(final.name, final.absolute(), validated.rank, validated.size_bytes)


def _config_bytes(validated: ValidatedAdapter) -> bytes:
    return json.dumps(validated.config, indent=2, sort_keys=True).encode("ascii") + b"\n"


def _move(temporary: Path, final: Path) -> bool:
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _write(file_fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(file_fd, view) :]


def _sync_folder(folder: Path) -> None:
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


def hide(folder: Path) -> Path:
    """Takes a copy out of use in one step; where it lies now, for ``discard``.

    Raises:
        OSError: it is not there, or cannot be moved.
    """
    hidden = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder.parent))
    try:
        # A rename onto an empty folder replaces it.
        os.rename(folder, hidden)
    except OSError:
        os.rmdir(hidden)
        raise
    return hidden


def discard(folder: Path) -> None:
    """Removes a folder of ours, hidden first so that nobody sees half of it."""
    if not folder.name.startswith(TEMPORARY):
        folder = hide(folder)
    if folder.is_dir():
        folder.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.unlink(missing_ok=True)


def _not_written(error: OSError) -> AdapterRejected:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AdapterRejected(
            Reason.NO_SPACE, "no space is left for the server's copy; free space in state_dir."
        )
    problem = os.strerror(error.errno or 0).lower()
    return AdapterRejected(Reason.UNREADABLE, f"the server's copy cannot be written: {problem}.")
