"""What stops ``tools serve``."""

from __future__ import annotations


class ServeProblem(Exception):
    """The server cannot be started or has died; the message names the reason and the cure."""


class StartCrash(ServeProblem):
    """The server was ended by a signal while it started: no setting says that, the next may go."""
