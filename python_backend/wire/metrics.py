"""Our metric families on Triton's metrics endpoint."""

from __future__ import annotations

from collections.abc import Mapping

import triton_python_backend_utils as pb_utils

from python_backend.metrics import Family, MakeSeries, MetricsOff, Write

_NOT_SUPPORTED = "metrics not supported"


class TritonMetrics:
    """Creates families through Triton (see ``metrics.Backend``)."""

    def __init__(self) -> None:
        # Kept for the life of the model: a family that is collected takes its help text along.
        self._families: list[object] = []

    def create(self, family: Family) -> MakeSeries:
        """See ``Backend.create``."""
        kinds = pb_utils.MetricFamily
        kind = {"counter": kinds.COUNTER, "gauge": kinds.GAUGE, "histogram": kinds.HISTOGRAM}
        try:
            made = kinds(name=family.name, description=family.help, kind=kind[family.kind])
        except pb_utils.TritonModelException as error:
            if _NOT_SUPPORTED in str(error).lower():
                raise MetricsOff from None
            raise
        self._families.append(made)

        def series(labels: Mapping[str, str]) -> Write:
            if family.kind == "histogram":
                metric = made.Metric(labels=dict(labels), buckets=list(family.buckets))
                write: Write = metric.observe
            else:
                metric = made.Metric(labels=dict(labels))
                write = metric.increment if family.kind == "counter" else metric.set
            return write

        return series

    def forget(self) -> None:
        """See ``Backend.forget``; the series stay on the server."""
        self._families.clear()
