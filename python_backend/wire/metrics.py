"""Our metric families on Triton's metrics endpoint."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import triton_python_backend_utils as pb_utils

from python_backend.metrics import Family, MakeSeries, MetricsOff, Write

_NOT_SUPPORTED = "metrics not supported"


def _for_good(made: object) -> None:
    """Never lets Triton's object be destroyed: the process takes it along.

    Destroyed while the model is unloaded, metrics corrupt the server's heap, which dies when the
    model is loaded again; left to the end of the interpreter, they crash the stub on its way out
    (both seen on 2.51). Their series stay on the server either way.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))


class TritonMetrics:
    """Creates families through Triton (see ``metrics.Backend``)."""

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
        _for_good(made)

        def series(labels: Mapping[str, str]) -> Write:
            if family.kind == "histogram":
                metric = made.Metric(labels=dict(labels), buckets=list(family.buckets))
                write: Write = metric.observe
            else:
                metric = made.Metric(labels=dict(labels))
                write = metric.increment if family.kind == "counter" else metric.set
            _for_good(metric)
            return write

        return series
