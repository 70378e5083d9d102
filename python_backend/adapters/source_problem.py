"""What may go wrong while an adapter is fetched, in words that carry no secret."""

from __future__ import annotations

import enum
import logging

from python_backend.errors import AdapterFailed

log = logging.getLogger(__name__)


class Problem(enum.StrEnum):
    """Every reason for which a fetch ends without an adapter."""

    NOT_ALLOWED = "source_not_allowed"
    NOT_FOUND = "source_not_found"
    FORBIDDEN = "source_forbidden"
    TOO_LARGE = "source_too_large"
    TIMED_OUT = "source_timed_out"
    CHANGED = "source_changed"
    CUT_OFF = "source_cut_off"
    CREDENTIALS = "source_credentials"
    CANCELLED = "source_cancelled"


class SourceFailed(AdapterFailed):
    """A fetch that has failed for good.

    Args:
        problem: one of the closed list.
        sentence: the file and the cure, without a full stop.
    """

    def __init__(self, problem: Problem, sentence: str) -> None:
        super().__init__(f"{problem}: {sentence}.")
        self.problem = problem


class Interrupted(Exception):
    """A read that may succeed when it is tried again."""


class AddressRefused(OSError):
    """A name that leads where it must not."""


_SENTENCES = {
    Problem.NOT_FOUND: "{name} is not there; name the adapter's folder",
    Problem.FORBIDDEN: "{name} may not be read; give the server credentials for it",
    Problem.CHANGED: "{name} changed between two reads; try again when it is at rest",
    Problem.NOT_ALLOWED: "{name} leads to an address that sources.allow does not name",
}


def failed(problem: Problem, name: str) -> SourceFailed:
    """The failure of one file."""
    return SourceFailed(problem, _SENTENCES[problem].format(name=name))


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of any back end carries."""
    # aiohttp's own "code" is deprecated beside "status", so it is not touched where that is there.
    for holder, name in (
        (error, "status"),
        (getattr(error, "response", None), "status_code"),
        (error, "code"),
    ):
        if str(value := getattr(holder, name, None)).isdigit():
            return int(str(value))
    return None


def explained(error: Exception, name: str) -> SourceFailed | Interrupted:
    """What an error of a back end means for the file ``name``.

    Its text is never passed on: it may hold a signed URL, or a header.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AddressRefused):
            return failed(Problem.NOT_ALLOWED, name)
        cause = cause.__cause__
    kind, status = type(error).__name__, _status(error)
    precondition = isinstance(error, OSError) and "pre-conditions" in str(error)
    if kind == "FileExpired" or precondition or status in (412, 416):
        return failed(Problem.CHANGED, name)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return failed(Problem.NOT_FOUND, name)
    if isinstance(error, PermissionError) or status in (401, 403) or "Credential" in kind:
        return failed(Problem.FORBIDDEN, name)
    if status is not None and 400 <= status < 500 and status not in (408, 425, 429):
        return SourceFailed(Problem.NOT_FOUND, f"{name}: the server answers {status}")
    log.info("a source could not be read (%s); trying again", kind)
    return Interrupted()
