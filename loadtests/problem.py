"""What stops a load test before it has begun."""

from __future__ import annotations


class LoadProblem(Exception):
    """Bad input, or a server that is not there; one line that names the cure. Exit code 2."""
