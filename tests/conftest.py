"""Hypothesis draws the same examples each time, so that a red run is about the change at hand.

New examples are looked for by ``make fuzz``.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True)
settings.register_profile("fuzz", suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("steady")
