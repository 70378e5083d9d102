"""Verification of an audit folder: every line, every file, every decision with its end."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from python_backend.audit import chain, retention
from python_backend.audit.chain import HEAD_SUFFIX, ChainError, Head
from tools.audit.findings import Kind, Verdict
from tools.audit.pairing import Pairing

TRUNCATED = "truncated tail after kill"


def verify(folder: Path, key: bytes, *, now_s: float | None = None) -> Verdict:
    """Looks at every file in ``folder``.

    Args:
        key: the audit key.
        now_s: the wall clock, seconds, for decisions whose end is still to come; now if None.
    """
    verdict = Verdict()
    heads, names = _heads(folder, key, verdict), {p.name for p in retention.files(folder)}
    pairing, macs = Pairing(), dict[str, dict[int, str]]()
    opens: list[tuple[str, dict[str, Any]]] = []
    for path in retention.files(folder):
        verdict.files += 1
        states: dict[int, str] = {}
        for number, record, mac in _lines(path, heads.get(path.name), key, verdict):
            states[int(record.get("seq", 0))] = mac
            if record.get("event") == "open" and number == 1:
                opens.append((path.name, record))
            pairing.add(path.name, number, record)
        macs[path.name] = states
    for name, record in opens:
        _check_open(name, record, names, heads, macs, verdict)
    for name, head in heads.items():
        if head.state != "removed" and name not in names:
            verdict.add(Kind.TAMPERED, name, 0, "the file is missing")
    pruned = any(head.state == "removed" for head in heads.values())
    pairing.finish(verdict, time.time() if now_s is None else now_s, pruned=pruned)
    return verdict


def _heads(folder: Path, key: bytes, verdict: Verdict) -> dict[str, Head]:
    found: dict[str, Head] = {}
    for path in sorted(folder.glob(f"*{HEAD_SUFFIX}")):
        try:
            head = Head.unseal(path.read_bytes(), key)
            if Path(head.file).with_suffix(HEAD_SUFFIX).name != path.name:
                raise ChainError(f"it is the checkpoint of {head.file}")
            found[head.file] = head
        except ChainError as error:
            verdict.add(Kind.TAMPERED, path.name, 0, f"a checkpoint that is not ours: {error}")
    return found


def _lines(
    path: Path, head: Head | None, key: bytes, verdict: Verdict
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Every line that can be read, with its number and mac; what is wrong goes to ``verdict``."""
    name, number, seq, offset, torn = path.name, 0, 0, 0, False
    previous: bytes | None = None
    seen: dict[int, str] = {}
    with path.open("rb") as file:
        for raw in file:
            number += 1
            whole = raw.endswith(b"\n")
            if not whole and (head is None or offset >= head.size):
                torn = True
                break
            offset += len(raw)
            try:
                # The first line states itself what came before it; ``_check_open`` judges that.
                start = _stated(raw) if previous is None else previous
                line = chain.unseal(raw.rstrip(b"\n"), start, key)
            except ChainError as error:
                verdict.add(Kind.TAMPERED, name, number, f"not a line of the audit: {error}")
                continue
            found = line.record.get("seq")
            if not line.good:
                moved = previous is not None and found != seq + 1
                what = "lines are missing or in another order" if moved else "the line was edited"
                verdict.add(Kind.TAMPERED, name, number, f"{what} (line number {found})")
            if number == 1 and (line.record.get("event"), line.record.get("file")) != (
                "open",
                name,
            ):
                verdict.add(Kind.TAMPERED, name, 1, "the file does not begin as it was begun")
            previous, seq = line.mac, found if isinstance(found, int) else seq + 1
            verdict.lines += 1
            seen[seq] = line.mac.hex()
            yield number, line.record, line.mac.hex()
    _check_end(name, head, seen, seq, torn, verdict)


def _same(one: object, other: object) -> bool:
    """Whether two macs, as hex text, are the same."""
    return hmac.compare_digest(str(one).encode(), str(other).encode())


def _stated(raw: bytes) -> bytes:
    try:
        return bytes.fromhex(_previous_mac(raw))
    except ValueError:
        raise ChainError("the first line does not say what came before it") from None


def _previous_mac(raw: bytes) -> str:
    marker = b'"previous_mac":"'
    at = raw.find(marker)
    if at < 0:
        raise ChainError("the first line is missing")
    return raw[at + len(marker) : at + len(marker) + 64].decode("ascii", "replace")


def _check_end(
    name: str, head: Head | None, seen: dict[int, str], seq: int, torn: bool, verdict: Verdict
) -> None:
    """Compares the end of a file with its checkpoint."""
    if head is None:
        verdict.add(Kind.TAMPERED, name, 0, "its checkpoint is missing")
        return
    if head.state == "removed":
        verdict.add(Kind.NOTE, name, 0, "about to be removed by retention")
        return
    if seq < head.seq:
        power = " (or the machine lost power: audit.sync is none)" if head.sync == "none" else ""
        verdict.add(
            Kind.TAMPERED, name, 0, f"its end is cut off: line {head.seq} was written{power}"
        )
    elif not _same(seen.get(head.seq), head.mac):
        verdict.add(Kind.TAMPERED, name, 0, f"line {head.seq} is not the one that was written")
    elif head.state == "closed" and seq > head.seq:
        verdict.add(Kind.TAMPERED, name, 0, "it goes on after its end")
    elif head.state == "open" and not retention.is_written_to(head):
        verdict.add(
            Kind.NOTE,
            name,
            0,
            f"{TRUNCATED}: the writer was killed; lines after {head.seq} may have been lost, "
            f"{seq - head.seq} are there" + (" and half of one" if torn else ""),
        )
    elif torn and head.state == "closed":
        verdict.add(Kind.TAMPERED, name, 0, "it goes on after its end")


def _check_open(
    name: str,
    record: dict[str, Any],
    names: set[str],
    heads: dict[str, Head],
    macs: dict[str, dict[int, str]],
    verdict: Verdict,
) -> None:
    """Whether all that a file's first line speaks of is there, and as it was then."""
    for other, (seq, mac) in dict(record.get("files", {})).items():
        head = heads.get(other)
        if head is not None and head.state == "removed":
            continue
        if other not in names:
            if head is None:  # with a head it is reported by that
                verdict.add(Kind.TAMPERED, other, 0, f"the file is missing ({name} names it)")
        elif not _same(macs.get(other, {}).get(seq), mac):
            verdict.add(
                Kind.TAMPERED, other, 0, f"it is not as it was when {name} was begun (line {seq})"
            )
    previous = record.get("previous")
    if previous and previous in names and macs[previous]:
        if not _same(list(macs[previous].values())[-1], record.get("previous_mac")):
            verdict.add(Kind.TAMPERED, name, 1, f"it does not follow {previous}")
    elif not previous and not _same(record.get("previous_mac"), chain.GENESIS.hex()):
        verdict.add(Kind.TAMPERED, name, 1, "it follows a file that it does not name")
