"""All rows of a forecast, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hpcbal.cli.forecast_inputs import Inputs
from hpcbal.forecast.choosing import cheapest, knee
from hpcbal.forecast.prediction import Band, Job, Prediction, predict
from hpcbal.forecast.rivals import Phases, cynthia, phases_of, queueing
from hpcbal.forecast.stopping import Stop

RIVALS = ("queueing", "cynthia", "cynthia_halved")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What `hpcbal forecast` shows.

    Attributes:
        rows: by servers, then workers.
        alone: samples per second of one worker, by number of servers.
        knees: workers after which another one no longer pays, by number of servers; None: not in the table.
            Empty with one number of workers, which tells nothing about more.
        choice: the cheapest machines for the wanted throughput; None if there are none, or none is wanted.
        rivals: samples per second by model, for each row; empty if not asked for.
    """

    inputs: Inputs
    rows: tuple[Prediction, ...]
    alone: dict[int, float]
    knees: dict[int, int | None]
    choice: Prediction | None
    rivals: tuple[dict[str, float], ...]

    def speedup(self, row: Prediction) -> Band:
        """Over one worker with as many servers."""
        return row.samples_per_s.times(1.0 / self.alone[row.num_servers])


def forecast_all(inputs: Inputs, workers: Sequence[int], *, with_rivals: bool) -> Forecast:
    """Predict every number of workers and servers, side by side on all cores.

    Raises:
        HpcbalError: the trace cannot be placed on so many servers, or the machines are not known.
    """
    pairs = [(num_workers, servers) for servers in inputs.servers for num_workers in workers]
    lone = [(1, servers) for servers in inputs.servers if 1 not in workers]
    jobs = {pair: inputs.job(*pair) for pair in (*pairs, *lone)}  # errors come before the long part
    found = _predict_all(jobs)
    rows = tuple(found[pair] for pair in pairs)
    alone = {servers: found[1, servers].samples_per_s.value for servers in inputs.servers}
    knees = {
        servers: knee([row for row in rows if row.num_servers == servers], alone[servers])
        for servers in inputs.servers
        if len(workers) > 1
    }
    choice = None if inputs.wanted is None else cheapest(rows, inputs.wanted, inputs.prices)
    rivals: tuple[dict[str, float], ...] = ()
    if with_rivals:
        phases = {servers: phases_of(jobs[1, servers]) for servers in inputs.servers}
        rivals = tuple(_rivals(jobs[pair], pair[0], phases[pair[1]]) for pair in pairs)
    return Forecast(inputs, rows, alone, knees, choice, rivals)


def _predict_all(jobs: Mapping[tuple[int, int], Job]) -> dict[tuple[int, int], Prediction]:
    """Predict all jobs on all cores. The first error, or Ctrl-C, ends those that run and starts no others."""
    stop = Stop()
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        longest_first = sorted(jobs, reverse=True)
        running = {pair: pool.submit(predict, jobs[pair], stop=stop) for pair in longest_first}
        return {pair: running[pair].result() for pair in jobs}
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _rivals(job: Job, num_workers: int, phases: Phases) -> dict[str, float]:
    values = (
        queueing(phases, num_workers, job.trace.samples_per_step),
        cynthia(job, num_workers),
        cynthia(job, num_workers, halved=True),
    )
    return dict(zip(RIVALS, values, strict=True))
