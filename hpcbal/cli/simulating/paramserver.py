"""`hpcbal simulate` for a parameter-server job: its epochs, and how it configures itself."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import Answer
from hpcbal.errors import HpcbalError, InputError
from hpcbal.runtime.simulating.predicted import FRAME_DELAY_S
from hpcbal.telemetry.views.table import count_text, format_table

if TYPE_CHECKING:
    from hpcbal.config import ParamServerConfig
    from hpcbal.forecast.prediction import Prediction
    from hpcbal.planning.paramserver import MeasuredEpoch
    from hpcbal.runtime.simulating.forecast import Change, JobForecast, Shape
    from hpcbal.simulator.paramserver.job import Delays

FORMAT = 1

ENSEMBLES_ONLY = {
    "profile": None,
    "slots_per_node": None,
    "paradigm": None,
    "seeds": None,
    "samples": None,
    "epochs": 1.0,
    "rate_deviation": 0.0,
    "kept_per_node": 1.0,
    "hit_rate": None,
    "output": None,
}
"""Options, and what they are if they are not given."""


def answer(args: argparse.Namespace, config: ParamServerConfig, warn: Callable[[str], None]) -> Answer:
    """Simulate the job on each number of executors."""
    from hpcbal.config import add_import_roots
    from hpcbal.planning.paramserver import default_executors, machines_of
    from hpcbal.runtime.jobs.loading import load_job
    from hpcbal.runtime.simulating.forecast import MOST_SHARING, forecast_job, simulates_shared_links

    given = [name for name, default in ENSEMBLES_ONLY.items() if getattr(args, name) != default]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{options}: works with ensembles only, and {args.config} is a parameter-server job")
    counts = args.slots or [default_executors(config)]
    if min(counts) < 2:
        raise InputError(f"--slots: got {min(counts)} executor, allowed: 2 or more, a worker and a server")
    delays = _delays(config, args.costs)
    measured = _measured(config)
    machines_of(config, max(counts), measured)  # what is missing is told before the data is opened
    add_import_roots(args.config)
    loaded = load_job(config)
    if config.link_model == "shared" and not simulates_shared_links(config, max(counts)):
        warn(
            f"more than {MOST_SHARING} executors are simulated with links that carry one message after the "
            "other, so their times are too short where a link is full; hpcbal forecast shares links of any "
            "number of executors"
        )
    forecasts = [forecast_job(config, loaded, count, measured, delays) for count in counts]
    rates = [_rate(config, each, warn) for each in forecasts]
    return Answer(
        _to_dict(config, measured, delays, forecasts, rates),
        lambda: _lines(config, measured, delays, forecasts, rates),
    )


def _rate(
    config: ParamServerConfig, simulated: JobForecast, warn: Callable[[str], None]
) -> Prediction | None:
    """Return what the trace of a profile lets expect of the roles at the start; None: nothing."""
    from hpcbal.forecast.prediction import predict
    from hpcbal.planning.throughput import traced_job

    start = simulated.start
    executors = range(start.num_workers + start.num_servers)
    try:
        job = traced_job(config, executors[: start.num_workers], executors[start.num_workers :])
    except HpcbalError as error:
        warn(f"the throughput cannot be forecast: {error}")
        return None
    return None if job is None else predict(job)


def _delays(config: ParamServerConfig, given: list[tuple[str, float]]) -> Delays:
    from hpcbal.simulator.paramserver.job import Delays

    names = [field.name for field in dataclasses.fields(Delays)]
    wrong = [name for name, _ in given if name not in names]
    if wrong:
        raise InputError(f"--cost: got {wrong[0]!r}, allowed for a parameter-server job: {', '.join(names)}")
    default = FRAME_DELAY_S if config.machines else 0.0
    values = {"send_s": default, "notice_s": default, "control_s": default} | dict(given)
    try:
        return Delays(**values)
    except InputError as error:
        raise InputError(f"--cost: {error}") from error


def _measured(config: ParamServerConfig) -> MeasuredEpoch | None:
    from hpcbal.planning.paramserver import measured_in

    ledger = Path(config.output.dir) / "ledger.jsonl"
    return measured_in(ledger, has_barrier=config.staleness == 0) if ledger.is_file() else None


def _to_dict(
    config: ParamServerConfig,
    measured: MeasuredEpoch | None,
    delays: Delays,
    forecasts: list[JobForecast],
    rates: list[Prediction | None],
) -> dict[str, Any]:
    """The forecasts as plain values; times are in seconds."""
    return {
        "format": FORMAT,
        "kind": config.kind,
        "name": config.name,
        "app": config.app,
        "max_epochs": config.stop.max_epochs,
        "costs": dataclasses.asdict(delays),
        "measured": None if measured is None else dataclasses.asdict(measured),
        "rows": [
            dataclasses.asdict(forecast)
            | {"samples_per_s": None if rate is None else dataclasses.asdict(rate.samples_per_s)}
            for forecast, rate in zip(forecasts, rates, strict=True)
        ],
    }


def _lines(
    config: ParamServerConfig,
    measured: MeasuredEpoch | None,
    delays: Delays,
    forecasts: list[JobForecast],
    rates: list[Prediction | None],
) -> list[str]:
    """The forecasts as text, line by line."""
    from hpcbal.planning.throughput import rate_text, trust_text

    epochs = count_text(config.stop.max_epochs, "epoch")
    source = "machines of the file"
    if measured is not None:
        source = f"what the run in {config.output.dir} measured"
        source += ", but for the file's machines" if config.machines else ""
    costs = ", ".join(f"{name} {value:g}" for name, value in dataclasses.asdict(delays).items() if value)
    headers = ["executors", "seconds", "executor-seconds", "at the start", "s/epoch", "at the end", "s/epoch"]
    headers.append("changes")
    cells = [
        [
            str(each.num_executors),
            seconds_text(each.seconds),
            seconds_text(each.executor_seconds),
            _roles(each.start),
            seconds_text(each.start.epoch_s),
            _roles(each.end),
            seconds_text(each.end.epoch_s),
            str(len(each.changes)),
        ]
        for each in forecasts
    ]
    lines = [
        f"{config.name}: parameter-server job of {config.app}, {epochs}",
        "",
        *format_table(headers, cells, right=(0, 1, 2, 4, 6, 7)),
        "",
        f"speeds: {source}",
        f"costs: {costs or 'none'}; --cost NAME=SECONDS sets them",
        "s/epoch: without its objective, while nothing changes",
        *(
            f"forecast: {_roles(each.start)}: {rate_text(rate)}"
            for each, rate in zip(forecasts, rates, strict=True)
            if rate is not None
        ),
        trust_text(config, is_forecast=any(rate is not None for rate in rates)),
    ]
    for each in forecasts:
        if each.changes:
            title = f"changes with {count_text(each.num_executors, 'executor')}:"
            lines += ["", title, *_changes(each.changes)]
    return lines


def _changes(changes: tuple[Change, ...]) -> list[str]:
    headers = ["at", "takes", "MB", "then", "s/epoch", "predicted", "simulated", "why"]
    cells = [
        [
            seconds_text(each.start_s),
            seconds_text(each.seconds),
            f"{each.num_bytes / 1e6:.3g}",
            _roles(each.after),
            seconds_text(each.after.epoch_s),
            "-" if each.predicted_gain is None else f"{100 * each.predicted_gain:.1f}%",
            f"{100 * each.simulated_gain:.1f}%",
            each.why.partition(": ")[2],
        ]
        for each in changes
    ]
    return format_table(headers, cells, right=(0, 1, 2, 4, 5, 6))


def _roles(shape: Shape) -> str:
    return f"{count_text(shape.num_workers, 'worker')}, {count_text(shape.num_servers, 'server')}"


def seconds_text(value: float) -> str:
    """Whole seconds; short times with three digits."""
    return f"{value:.0f}" if value >= 1000.0 else f"{value:.3g}"
