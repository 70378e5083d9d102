"""How many processors this process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

#: The quota of the control group that a container sees as its own: version 2, then version 1.
_V2 = "cpu.max"
_V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Processors that this process may run on, or as many as its quota of time is worth.

    A container with ``--cpus=4`` on a machine with 64 may run on all of them, for 4 processors'
    time: 63 threads would use that up in the first part of each period and stand still together
    for the rest.

    Returns:
        1 at least; a fraction of a processor counts as none.
    """
    cores, quota = len(os.sched_getaffinity(0)), _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Processors' worth of time; None: no limit, or none that we can read."""
    try:
        try:
            words = (cgroup / _V2).read_text().split()
        except FileNotFoundError:
            words = [(cgroup / name).read_text().strip() for name in _V1]
        quota, period = int(words[0]), int(words[1])  # "max" is no number: no limit
    except (OSError, ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None
