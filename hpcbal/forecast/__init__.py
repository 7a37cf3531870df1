"""Forecast the throughput of asynchronous training on W workers and M servers, from a trace of one worker."""

from hpcbal.forecast.cluster import Cluster, Links
from hpcbal.forecast.simulation import FLOW_CONTROL_OFF, Replay, Settings, simulate
from hpcbal.forecast.trace import Operation, Resource, Trace, TraceError

__all__ = [
    "FLOW_CONTROL_OFF",
    "Cluster",
    "Links",
    "Operation",
    "Replay",
    "Resource",
    "Settings",
    "Trace",
    "TraceError",
    "simulate",
]
