"""Files and folders that appear whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(target: Path, scratch: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends without an error.

    The folder is built in ``scratch`` (default: beside ``target``; it must lie on the same file
    system) and renamed, so a reader sees either all of it or none. A ``target`` that exists is
    moved aside first and deleted last.
    """
    place = scratch or target.parent
    place.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=place))
    try:
        building.chmod(0o755)  # mkdtemp makes it 0700; a container's other user must read it
        yield building
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=place))
            os.rename(target, aside / target.name)
            os.rename(building, target)
            shutil.rmtree(aside)
        else:
            os.rename(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one step.

    The file is created with ``mode`` from the start: a secret is never readable for a moment.
    """
    building = path.with_name(f".{path.name}.{os.getpid()}.new")
    building.unlink(missing_ok=True)
    handle = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(building, path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, object], mode: int = 0o644) -> None:
    """Replace ``path`` by ``value`` as readable JSON in one step."""
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", mode)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a large read-only file; copy it where the file system cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
