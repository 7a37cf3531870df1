"""Forecast the throughput of asynchronous training on W workers and M servers, from a trace of one worker."""

from hpcbal.forecast.cluster import Links, Topology
from hpcbal.forecast.simulation import FLOW_CONTROL_OFF, Settings, simulate
from hpcbal.forecast.trace import Resource, Trace, TracedOperation, TraceError

__all__ = [
    "FLOW_CONTROL_OFF",
    "Links",
    "Resource",
    "Settings",
    "Topology",
    "Trace",
    "TraceError",
    "TracedOperation",
    "simulate",
]
