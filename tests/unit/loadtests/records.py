"""Records of runs that tests make up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loadtests.results import Request, Sample


def request(t: float = 0.5, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "t": t,
        "sent": t + 0.25,
        "user": "grpc_stream",
        "department": "mark",
        "kind": "good",
        "lora_id": "mark_w0001_v1",
        "served": "mark_w0001_v1@abc",
        "outcome": "ok",
        "ttft": 0.125,
        "gaps": (0.05, 0.5),
        "total": 1.5,
        "tokens": 8,
        "route": "right",
    }
    return Request(**{**fields, **changes})


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "t": 1.0,
        "rss": {"tritonserver": 100},
        "fds": {"tritonserver": 10},
        "threads": {"tritonserver": 5},
        "shm": 1000,
        "series": 50,
        "metrics": {},
    }
    return Sample(**{**fields, **changes})


def most_at_once(requests: Iterable[Request]) -> int:
    """How many were under way at the same time."""
    spans = [(request.sent, request.sent + request.total) for request in requests]
    ends = [(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]
    most = now = 0
    for _, change in sorted(ends):
        now += change
        most = max(most, now)
    return most
