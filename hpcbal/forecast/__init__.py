"""Forecast the throughput of asynchronous training on W workers and M servers, from a trace of one worker."""

from hpcbal.forecast.trace import Operation, Resource, Trace, TraceError, trace_of_steps

__all__ = ["Operation", "Resource", "Trace", "TraceError", "trace_of_steps"]
