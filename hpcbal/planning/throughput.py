"""The throughput of an asynchronous job, from what a profile recorded of one worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hpcbal.config import ParamServerConfig
from hpcbal.forecast import FLOW_CONTROL_OFF, Links, Settings, Topology, Trace
from hpcbal.forecast.prediction import Prediction, TracedJob, figures_of, predict
from hpcbal.forecast.trace import on_servers, scaled
from hpcbal.forecast.trace_file import read_trace
from hpcbal.telemetry.files.run_directory import RunDirectory

NUM_STEPS = 300
MOST_EXECUTORS = 128
"""With more, a forecast would take many seconds; `hpcbal forecast` makes it."""


def links_of(config: ParamServerConfig, executor: int, bytes_per_s: float | None = None) -> Links:
    """The link of an executor in each direction, and how slowly it computes.

    Args:
        config: the job.
        executor: counted from 0.
        bytes_per_s: of every link; None: as the file's `machines` say, infinite where they say nothing.
    """
    machine, first = config.machine_of(executor), config.machine_of(0)
    rate = bytes_per_s or (None if machine is None else machine.bandwidth) or math.inf
    slowness = 1.0
    if machine is not None and first is not None:
        if machine.seconds_per_sample is not None and first.seconds_per_sample is not None:
            slowness = machine.seconds_per_sample / first.seconds_per_sample
        slowness *= first.speed / machine.speed
    return Links(rate, rate, slowness)


def traced_job(config: ParamServerConfig, workers: Sequence[int], servers: Sequence[int]) -> TracedJob | None:
    """Return the job on these executors, to be simulated; None without a profile that says enough.

    It says too little without the bandwidth of the servers' links, which `machines` gives. Jobs that are not
    asynchronous are not simulated from it, nor those of more than MOST_EXECUTORS.

    Args:
        config: the job; its trace is in the output directory.
        workers, servers: executors, counted from 0; an executor is one or the other.

    Raises:
        TraceError: the file is not a trace.
        InputError: it cannot be read.
        PolicyError: it cannot be placed on so many servers.
    """
    if config.staleness is not None or not workers or not servers:
        return None
    if len(workers) + len(servers) > MOST_EXECUTORS:
        return None
    links = [links_of(config, executor) for executor in servers]
    if any(math.isinf(each.down_bytes_per_s) for each in links):
        return None
    trace = _trace(config)
    if trace is None:
        return None
    cluster = Topology(
        tuple(links_of(config, executor) for executor in workers),
        tuple(Links(each.down_bytes_per_s, each.up_bytes_per_s) for each in links),
    )
    settings = Settings(NUM_STEPS, window_bytes=FLOW_CONTROL_OFF, in_turn=config.link_model == "in_turn")
    return TracedJob(on_servers(trace, len(servers)), cluster, settings=settings)


def _trace(config: ParamServerConfig) -> Trace | None:
    path = RunDirectory(Path(config.output.dir)).operations
    if not path.is_file():
        return None
    trace = read_trace(path)
    return trace if trace.samples_per_step == config.mini_batch else scaled(trace, config.mini_batch)


def forecast_best(config: ParamServerConfig, num_executors: int) -> Prediction | None:
    """The forecast of the numbers of workers and servers that the file gives, or of the fastest ones.

    If one of them is `auto`, it is what the other leaves of the executors; if both are, all splits are tried.
    None as for `traced_job`, or if there are too few executors.

    Raises:
        As `traced_job`.
    """
    jobs = []
    for num_workers, num_servers in _sizes(config, num_executors):
        executors = range(num_workers + num_servers)
        job = traced_job(config, executors[:num_workers], executors[num_workers:])
        if job is not None:
            jobs.append(job)
    if not jobs:
        return None
    return predict(max(jobs, key=lambda job: figures_of(job, job.run())[0]))


def _sizes(config: ParamServerConfig, num_executors: int) -> list[tuple[int, int]]:
    """Numbers of workers and servers, both at least 1."""
    workers, servers = config.workers, config.servers
    if workers != "auto" and servers != "auto":
        sizes = [(workers, servers)] if workers + servers <= num_executors else []
    elif workers != "auto":
        sizes = [(workers, num_executors - workers)]
    elif servers != "auto":
        sizes = [(num_executors - servers, servers)]
    else:
        sizes = [(count, num_executors - count) for count in range(1, num_executors)]
    return [size for size in sizes if min(size) >= 1]


def rate_text(found: Prediction) -> str:
    """The forecast for users, without the machines."""
    band = found.samples_per_s
    limit = "" if found.limit is None else f", limited by {found.limit.value}"
    return f"{band.value:.4g} samples/s ({band.low:.4g} to {band.high:.4g}){limit}"


def trust_text(config: ParamServerConfig, *, is_forecast: bool) -> str:
    """Return which prediction of a job to trust, and why; the same in `plan` and in `simulate`.

    Args:
        config: the job.
        is_forecast: whether there is a forecast from its trace.
    """
    if is_forecast:
        return (
            "trust the forecast: it replays recorded steps message by message, and its band shows how far "
            "they differ; other numbers follow from means"
        )
    text = "trust hpcbal simulate more than hpcbal plan: it plays each message, where plan takes means"
    if config.staleness is None and config.link_model == "in_turn":
        text += "; hpcbal profile --operations records what a forecast with a band needs"
    return text
