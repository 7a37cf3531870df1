"""`hpcbal plan` for a parameter-server job: its ranks and the command that starts it."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import Answer
from hpcbal.cli.planning.prediction import Sources, earlier_runs, sources_of
from hpcbal.errors import HpcbalError, InputError
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.table import count_text

if TYPE_CHECKING:
    from hpcbal.config import JobsConfig, ParamServerConfig, RunConfig
    from hpcbal.forecast.prediction import Prediction as ThroughputForecast
    from hpcbal.planning.allocation import AllocationPrediction, PredictedRun
    from hpcbal.planning.paramserver import MeasuredEpoch, PredictedConfiguration


def answer(args: argparse.Namespace, config: ParamServerConfig, warn: Callable[[str], None]) -> Answer:
    """Say which ranks to request, and what follows from an earlier run in the output directory."""
    from hpcbal.planning.paramserver import default_executors

    refuse_what_is_for_ensembles(args, "is a parameter-server job")
    executors = asked_for(args, config, default_executors(config))
    if executors < 2:
        raise InputError(f"got {executors} executor, allowed: 2 or more, a worker and a server")
    facts: dict[str, Any] = {
        "kind": config.kind,
        "name": config.name,
        "app": config.app,
        "executors": executors,
        "ranks": executors + 1,
        "workers": config.workers,
        "servers": config.servers,
        "tunes_itself": config.tune.enabled,
    }
    earlier = _earlier(config, executors)
    forecast = _forecast(config, executors, warn)
    found = {} if earlier is None else asdict_of(*earlier)
    if forecast is not None:
        found["forecast"] = {
            "num_workers": forecast.num_workers,
            "num_servers": forecast.num_servers,
            "samples_per_s": dataclasses.asdict(forecast.samples_per_s),
            "limited_by": forecast.limit,
        }
    times = times_of(config, args, executors, warn)
    tuning = "changes them while it trains" if config.tune.enabled else "keeps them"
    lines = [
        f"{config.name}: parameter-server job of {config.app}",
        f"ranks: {executors + 1} = 1 master + {executors} executors",
        f"workers: {config.workers}, servers: {config.servers}; the job {tuning}",
        *([] if earlier is None else text_of(*earlier)),
        *([] if forecast is None else [_forecast_text(forecast)]),
        *_trust_lines(config, earlier is not None, forecast is not None),
        *time_lines(times),
        *start_lines(args, executors),
    ]
    return Answer({**facts, **found, **time_facts(times), **launch_facts(args, executors)}, lambda: lines)


def predicted(
    config: ParamServerConfig, sources: Sources, num_nodes: int, slots_per_node: int
) -> tuple[PredictedRun, int]:
    """Predict the job on so many nodes; returns the number of executors too; see `prediction_of`."""
    from hpcbal.planning.paramserver import measured_in
    from hpcbal.runtime.simulating.predicted import predicted_job

    check_open(sources)
    ledger = Path(config.output.dir) / "ledger.jsonl"
    measured = measured_in(ledger, has_barrier=config.staleness == 0) if ledger.is_file() else None
    executors = executors_on(num_nodes, slots_per_node)
    return predicted_job(config, executors, measured), executors


def executors_on(num_nodes: int, slots_per_node: int) -> int:
    """Return the number of ranks beside rank 0: all nodes have equally many ranks."""
    return (slots_per_node + 1) * num_nodes - 1


def check_open(sources: Sources) -> None:
    """Let the data be opened, with modules beside the file.

    Raises:
        InputError: they may not be opened.
    """
    from hpcbal.config import add_import_roots

    if not sources.open_data:
        raise InputError(
            f"{sources.path}: the wall time is not known without the data: give --open-data to open them "
            "(which runs their code and that of the app) and simulate the run"
        )
    add_import_roots(sources.path)


def times_of(
    config: ParamServerConfig | JobsConfig,
    args: argparse.Namespace,
    executors: int,
    warn: Callable[[str], None],
) -> AllocationPrediction | str:
    """Return how long the run takes on these ranks, or why that is not known."""
    from hpcbal.kinds import KINDS
    from hpcbal.planning.allocation import AllocationPrediction

    if not args.open_data:
        return "--open-data opens the data (which runs their code) and simulates the run"
    try:
        found, _ = KINDS[config.kind].predicted(config, sources_of(args), 1, executors)
    except InputError as error:
        return str(error)
    runs = earlier_runs(config, sources_of(args), warn)
    return AllocationPrediction.of(found, args.nodes, executors, runs)


def time_lines(times: AllocationPrediction | str) -> list[str]:
    """Return the time of the run for users."""
    if isinstance(times, str):
        return [f"wall time: unknown, because {times}" if ":" in times else f"wall time: unknown; {times}"]
    return [f"wall time: {duration_text(times.wall_time_s)} with all of max_epochs", *times.lines()]


def time_facts(times: AllocationPrediction | str) -> dict[str, Any]:
    """Return the time of the run for `--json`."""
    return {"time": None if isinstance(times, str) else times.to_dict()}


def refuse_what_is_for_ensembles(args: argparse.Namespace, what: str) -> None:
    """Raise InputError if an option is given that only ensembles have.

    Args:
        args: the command line.
        what: what the file is, with a verb.
    """
    for option, given in (("--profile", args.profile), ("--samples", args.samples)):
        if given is not None:
            raise InputError(f"{option}: works with ensembles only, and {args.config} {what}")


def asked_for(args: argparse.Namespace, config: RunConfig, default: int) -> int:
    """Return the number of ranks beside rank 0, which fill the nodes: all nodes have equally many ranks.

    Args:
        args: the command line; its `nodes` become as many as `slots` need.
        config: the file.
        default: their number, at least, if neither says how many a node has.
    """
    per_node = args.slots_per_node or config.slots.per_node
    if args.slots is not None:
        from hpcbal.planning.ensemble_plan import nodes_for

        if not isinstance(per_node, int):
            return int(args.slots)
        args.nodes, per_node = nodes_for(args.slots, per_node)
    if isinstance(per_node, int):
        return int((per_node + 1) * args.nodes - 1)
    return int(args.nodes * ranks_per_node(args, default) - 1)


def ranks_per_node(args: argparse.Namespace, others: int) -> int:
    """Return how many ranks a node needs if there are so many beside rank 0."""
    return math.ceil((others + 1) / args.nodes)


def launch_lines(args: argparse.Namespace, others: int) -> list[str]:
    """Return commands that start rank 0 and the others; any one of them will do."""
    from hpcbal.cluster.launch_line import RanksToStart

    ranks = RanksToStart(args.nodes, ranks_per_node(args, others), args.cpus_per_task)
    return [shlex.join([*line, *command_of(args)]) for line in (ranks.mpirun(), ranks.srun())]


def launch_facts(args: argparse.Namespace, others: int) -> dict[str, Any]:
    """Return these commands for `--json`, and the one without a launcher."""
    return {"command": command_of(args), "launch": launch_lines(args, others)}


def start_lines(args: argparse.Namespace, others: int) -> list[str]:
    """Return these commands for users."""
    mpirun, srun = launch_lines(args, others)
    return [f"start: {mpirun}", f"   or: {srun}"]


def command_of(args: argparse.Namespace) -> list[str]:
    """The words of the command that starts the run, without a launcher."""
    return ["hpcbal", "run", str(args.config), *(w for o in args.overrides for w in ("--set", o))]


def _earlier(
    config: ParamServerConfig, executors: int
) -> tuple[MeasuredEpoch, PredictedConfiguration] | None:
    """Return the measurements of a run in the output directory, and its prediction; None if there is none."""
    ledger = Path(config.output.dir) / "ledger.jsonl"
    if not ledger.is_file():
        return None
    from hpcbal.planning.paramserver import measured_in, predicted

    measured = measured_in(ledger, has_barrier=config.staleness == 0)
    prediction = None if measured is None else predicted(config, measured, executors)
    return None if measured is None or prediction is None else (measured, prediction)


def _forecast(
    config: ParamServerConfig, executors: int, warn: Callable[[str], None]
) -> ThroughputForecast | None:
    """Forecast from the trace of an earlier profile; None without one, or if it does not fit."""
    if config.staleness is not None:
        return None
    from hpcbal.planning.throughput import forecast_best

    try:
        return forecast_best(config, executors)
    except HpcbalError as error:
        warn(f"the throughput cannot be forecast: {error}")
        return None


def _forecast_text(found: ThroughputForecast) -> str:
    from hpcbal.planning.throughput import rate_text

    workers, servers = count_text(found.num_workers, "worker"), count_text(found.num_servers, "server")
    return f"forecast: {workers}, {servers}: {rate_text(found)}"


def _trust_lines(config: ParamServerConfig, is_predicted: bool, is_forecast: bool) -> list[str]:
    """Say which prediction to trust; nothing if there is none."""
    if not (is_predicted or is_forecast):
        return []
    from hpcbal.planning.throughput import trust_text

    return [trust_text(config, is_forecast=is_forecast)]


def asdict_of(measured: MeasuredEpoch, prediction: PredictedConfiguration) -> dict[str, Any]:
    """For `--json`."""
    return {"measured": dataclasses.asdict(measured), "predicted": dataclasses.asdict(prediction)}


def text_of(measured: MeasuredEpoch, prediction: PredictedConfiguration) -> list[str]:
    """Lines for users."""
    return [
        f"measured: {count_text(measured.num_workers, 'worker')}, "
        f"{count_text(measured.num_servers, 'server')}: {measured.epoch_s:.3g} s an epoch; "
        f"{1e3 * measured.seconds_per_sample:.3g} ms a sample, {measured.turn_bytes / 1e6:.3g} MB a turn",
        f"predicted: {count_text(prediction.num_workers, 'worker')}, "
        f"{count_text(prediction.num_servers, 'server')}: {prediction.epoch_s:.3g} s an epoch, without its "
        f"objective ({prediction.bandwidth / 1e6:.3g} MB/s each way)",
    ]
