"""The adapter root: every sub-folder that is named like an adapter, judged and staged."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path

from python_backend.adapters import naming, staging
from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.rejection import AdapterRejected, shown
from python_backend.adapters.seal import UNSIGNED, SignaturePolicy
from python_backend.adapters.target import Target

#: Copying waits for the disk (fsync) and hashing lets other threads run.
_THREADS = 8

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Scanned:
    """One adapter of the root: its catalog entry, and its copy unless it was refused."""

    entry: Entry
    path: Path | None


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """What the root holds.

    Args:
        adapters: by lora_id, ready or failed.
        badly_named: a line for the log for each folder that no adapter can be named by. They are
            in no catalog: a name outside the grammar reaches no client.
    """

    adapters: dict[str, Scanned]
    badly_named: list[str]


#: Called after each adapter, in the caller's thread: (done, of how many, what came of it).
Progress = Callable[[int, int, Entry], None]


def stage_folder(
    lora_id: str,
    folder: Path,
    staged_root: Path,
    target: Target,
    max_file_bytes: int,
    signatures: SignaturePolicy = UNSIGNED,
) -> Scanned:
    """Judges and stages ``folder`` as ``lora_id``; never raises for what is in it."""
    try:
        staged = staging.stage(
            folder, staged_root, target, max_file_bytes, lora_id=lora_id, signatures=signatures
        )
    except AdapterRejected as error:
        return Scanned(Entry(lora_id, State.FAILED, reason=error.text), None)
    except Exception:
        _log.exception("adapter %s could not be judged", lora_id)
        reason = "internal: it could not be judged; the trace is in the server's log."
        return Scanned(Entry(lora_id, State.FAILED, reason=reason), None)
    entry = Entry(lora_id, State.READY, staged.digest, staged.rank, staged.size_bytes)
    return Scanned(entry, staged.path)


def scan(
    root: Path,
    staged_root: Path,
    target: Target,
    max_file_bytes: int,
    progress: Progress | None = None,
    signatures: SignaturePolicy = UNSIGNED,
) -> ScanResult:
    """Judges and stages every adapter under ``root``; a broken one never blocks the others.

    Hidden entries, and plain files that are not named like an adapter, are skipped.

    Raises:
        OSError: ``root`` itself cannot be listed.
    """
    lora_ids, badly_named = _names(root)
    adapters: dict[str, Scanned] = {}
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "adapter-scan") as pool:
        futures = [
            pool.submit(
                stage_folder,
                lora_id,
                root / lora_id,
                staged_root,
                target,
                max_file_bytes,
                signatures,
            )
            for lora_id in lora_ids
        ]
        for future in concurrent.futures.as_completed(futures):
            scanned = future.result()
            adapters[scanned.entry.lora_id] = scanned
            if progress is not None:
                progress(len(adapters), len(lora_ids), scanned.entry)
    return ScanResult(dict(sorted(adapters.items())), badly_named)


def _names(root: Path) -> tuple[list[str], list[str]]:
    """The lora_ids under ``root``, and a line for each folder that is badly named."""
    lora_ids, badly_named = [], []
    with os.scandir(root) as entries:
        for entry in entries:
            # Undecodable names carry surrogates; the grammar is ASCII, so none is a lora_id.
            if entry.name.startswith("."):
                continue
            if naming.is_lora_id(entry.name):
                lora_ids.append(entry.name)
            elif entry.is_dir(follow_symlinks=False) or entry.is_symlink():
                badly_named.append(
                    f"{shown(entry.name)} is not a lora_id (department_business_version, such as "
                    "fin_risk_v2); rename the folder."
                )
    return sorted(lora_ids), sorted(badly_named)
