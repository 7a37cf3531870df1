"""A forecast as a table, as JSON, and all its rows."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hpcbal.cli.forecasting.inputs import Inputs
from hpcbal.forecast.prediction import Band, Prediction, TracedJob, cheapest, knee, predict
from hpcbal.forecast.simulation import Stop
from hpcbal.telemetry.views.table import count_text, format_table


@dataclass(frozen=True, slots=True)
class Forecast:
    """The results that `hpcbal forecast` shows.

    Attributes:
        rows: by servers, then workers.
        alone: samples per second of one worker, by number of servers.
        knees: workers after which another one no longer pays, by number of servers; None: not in the table.
            Empty with one number of workers, which tells nothing about more.
        choice: the cheapest machines for the wanted throughput; None if there are none, or none is wanted.
    """

    inputs: Inputs
    rows: tuple[Prediction, ...]
    alone: dict[int, float]
    knees: dict[int, int | None]
    choice: Prediction | None

    def speedup(self, row: Prediction) -> Band:
        """Over one worker with as many servers."""
        return row.samples_per_s.times(1.0 / self.alone[row.num_servers])


def forecast_all(inputs: Inputs, workers: Sequence[int]) -> Forecast:
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
    return Forecast(inputs, rows, alone, knees, choice)


def _predict_all(jobs: Mapping[tuple[int, int], TracedJob]) -> dict[tuple[int, int], Prediction]:
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


FORMAT = 1
_BANDS = ("samples_per_s", "step_s", "communicating", "exposed", "downlink_use", "uplink_use")


def to_dict(forecast: Forecast) -> dict[str, Any]:
    """The forecast as plain values; rates are in bytes per second, times in seconds."""
    inputs = forecast.inputs
    window = inputs.settings.window_bytes
    return {
        "format": FORMAT,
        "name": inputs.name,
        "traces": [str(file) for file in inputs.files],
        "num_operations": inputs.num_operations,
        "num_recorded_steps": inputs.trace.num_steps,
        "batch_size": inputs.trace.samples_per_step,
        "bandwidth": inputs.bytes_per_s,
        "order": inputs.settings.order,
        "links": "in-turn" if inputs.settings.in_turn else "shared",
        "window_bytes": None if math.isinf(window) else window,
        "parsing": dataclasses.asdict(inputs.parsing),
        "step_overhead_s": inputs.step_overhead_s,
        "steps": inputs.settings.num_steps,
        "seed": inputs.settings.seed,
        "rows": [_row(forecast, row) for row in forecast.rows],
        "knees": [{"servers": servers, "workers": workers} for servers, workers in forecast.knees.items()],
        "wanted": None if inputs.wanted is None else _choice(forecast, inputs.wanted),
    }


def _row(forecast: Forecast, row: Prediction) -> dict[str, Any]:
    return {
        "workers": row.num_workers,
        "servers": row.num_servers,
        **{name: dataclasses.asdict(getattr(row, name)) for name in _BANDS},
        "speedup": dataclasses.asdict(forecast.speedup(row)),
        "limit": None if row.limit is None else row.limit.value,
        "gains": {limit.value: gain for limit, gain in row.gains.items()},
    }


def _choice(forecast: Forecast, wanted: float) -> dict[str, Any]:
    row, prices = forecast.choice, forecast.inputs.prices
    return {
        "samples_per_s": wanted,
        "prices": dataclasses.asdict(prices),
        "workers": None if row is None else row.num_workers,
        "servers": None if row is None else row.num_servers,
        "cost": None if row is None else prices.of(row),
    }


def render(forecast: Forecast) -> list[str]:
    """The forecast as text, line by line."""
    inputs = forecast.inputs
    headers = ["workers", "servers", "samples/s", "90% band", "speed-up", "step", "communicating"]
    headers += ["exposed", "downlink", "uplink", "limited by"]
    cells = [cells_of(forecast, row) for row in forecast.rows]
    return [
        f"{inputs.name}: {count_text(inputs.num_operations, 'operation')}, "
        f"{count_text(inputs.trace.num_steps, 'recorded step')}, "
        f"batches of {count_text(inputs.trace.samples_per_step, 'sample')}",
        *(
            [f"{1000 * inputs.step_overhead_s:.3g} ms of each step are in no operation"]
            if inputs.step_overhead_s
            else []
        ),
        "",
        *format_table(headers, cells, right=range(10)),
        "",
        *conclusions(forecast),
        "",
        "band: where 9 of 10 runs of a quarter as many steps are expected, by repeated simulations with",
        "other seeds, other starts, and recorded steps drawn anew; communicating: share of a step with a",
        "transfer under way, exposed: without computing meanwhile; links: use of the busiest server's;",
        "limited by: what would bring most if it were twice as fast",
    ]


def cells_of(forecast: Forecast, row: Prediction) -> list[str]:
    """A row of the table."""
    return [
        str(row.num_workers),
        str(row.num_servers),
        number(row.samples_per_s.value),
        f"{number(row.samples_per_s.low)} - {number(row.samples_per_s.high)}",
        f"{forecast.speedup(row).value:.2f}",
        duration(row.step_s.value),
        percent(row.communicating),
        percent(row.exposed),
        percent(row.downlink_use),
        percent(row.uplink_use),
        limit_text(row),
    ]


def limit_text(row: Prediction) -> str:
    """Return the resource that limits a row, and the gain if it were twice as fast."""
    return "-" if row.limit is None else f"{row.limit} (+{100 * row.gains[row.limit]:.0f}%)"


def conclusions(forecast: Forecast) -> list[str]:
    """Return the conclusions from the table, a line each."""
    lines = []
    for servers, workers in forecast.knees.items():
        where = count_text(servers, "server")
        if workers is None:
            most = max(row.num_workers for row in forecast.rows)
            lines.append(f"knee with {where}: none; more workers pay up to {most}")
            continue
        lines.append(
            f"knee with {where}: {count_text(workers, 'worker')}; each one more adds less than half of what "
            "one alone does"
        )
    wanted, row, prices = forecast.inputs.wanted, forecast.choice, forecast.inputs.prices
    if wanted is None:
        return lines
    if row is None:
        return [*lines, f"cheapest for {wanted:g} samples/s: nothing in the table reaches it"]
    sure = "" if row.samples_per_s.low >= wanted else "; the lower end of its band does not reach it"
    return [
        *lines,
        f"cheapest for {wanted:g} samples/s: {count_text(row.num_workers, 'worker')} and "
        f"{count_text(row.num_servers, 'server')}, cost {prices.of(row):g}{sure}",
    ]


def number(value: float) -> str:
    """Three digits; larger numbers whole."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds or milliseconds, three digits."""
    return f"{number(seconds)} s" if seconds >= 1.0 else f"{number(1e3 * seconds)} ms"


def percent(band: Band) -> str:
    """A share in whole percent."""
    return f"{100 * band.value:.0f}%"
