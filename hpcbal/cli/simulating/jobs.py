"""`hpcbal simulate` for many parameter-server jobs: when they are done, under each paradigm."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import Answer
from hpcbal.cli.simulating.paramserver import ENSEMBLES_ONLY, seconds_text
from hpcbal.errors import InputError
from hpcbal.runtime.simulating.predicted import DELAYS_S
from hpcbal.telemetry.views.table import count_text, format_table

if TYPE_CHECKING:
    from hpcbal.config import JobsConfig
    from hpcbal.simulator.coscheduling.job import SharingDelays
    from hpcbal.simulator.coscheduling.record import SharingRun

FORMAT = 1

PARADIGMS = ("harmony", "isolated", "naive")


def answer(args: argparse.Namespace, config: JobsConfig, warn: Callable[[str], None]) -> Answer:
    """Simulate the jobs under each paradigm, on each number of machines."""
    from hpcbal.config import add_import_roots
    from hpcbal.runtime.jobs.loading import load_job
    from hpcbal.runtime.simulating.shared_jobs import check_speeds, forecast_jobs

    paradigms = _paradigms(args, config)
    given = [
        name
        for name, default in ENSEMBLES_ONLY.items()
        if name != "paradigm" and getattr(args, name) != default
    ]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{options}: works with ensembles only, and {args.config} has parameter-server jobs")
    delays = _delays(args.costs)
    check_speeds(config)
    counts = args.slots or [sum(machine.count for machine in config.machines)]
    add_import_roots(args.config)
    loaded = {job.name: load_job(job) for job in config.jobs}
    runs = [
        (count, paradigm, forecast_jobs(_with(config, paradigm), loaded, count, delays))
        for count in counts
        for paradigm in paradigms
    ]
    return Answer(_to_dict(config, delays, runs), lambda: _lines(config, delays, runs))


def _paradigms(args: argparse.Namespace, config: JobsConfig) -> list[str]:
    wanted = args.paradigm or [config.schedule.paradigm]
    wrong = [name for name in wanted if name not in (*PARADIGMS, "all")]
    if wrong:
        raise InputError(
            f"--paradigm: got {wrong[0]!r}, allowed for many jobs: {', '.join((*PARADIGMS, 'all'))}"
        )
    return list(PARADIGMS) if "all" in wanted else wanted


def _with(config: JobsConfig, paradigm: str) -> JobsConfig:
    """The file with another paradigm; only `naive` has fixed groups."""
    groups = config.schedule.groups if paradigm == "naive" else None
    schedule = config.schedule.model_copy(update={"paradigm": paradigm, "groups": groups})
    return config.model_copy(update={"schedule": schedule})


def _delays(given: list[tuple[str, float]]) -> SharingDelays:
    from hpcbal.simulator.coscheduling.job import SharingDelays

    names = [field.name for field in dataclasses.fields(SharingDelays)]
    wrong = [name for name, _ in given if name not in names]
    if wrong:
        raise InputError(f"--cost: got {wrong[0]!r}, allowed for many jobs: {', '.join(names)}")
    try:
        return SharingDelays(**(DELAYS_S | dict(given)))
    except InputError as error:
        raise InputError(f"--cost: {error}") from error


def _to_dict(
    config: JobsConfig, delays: SharingDelays, runs: list[tuple[int, str, SharingRun]]
) -> dict[str, Any]:
    """The forecasts as plain values; times are in seconds."""
    from hpcbal.runtime.simulating.shared_jobs import is_framed

    return {
        "format": FORMAT,
        "kind": config.kind,
        "name": config.name,
        "costs": {name: value for name, value in dataclasses.asdict(delays).items() if value != float("inf")},
        "rows": [
            {
                "machines": count,
                "paradigm": paradigm,
                "by_frames": is_framed(count),
                "makespan_s": run.makespan_s,
                "mean_completion_s": run.mean_completion_s,
                "cpu_use": run.cpu_use,
                "network_use": run.network_use,
                "moving_share": run.moving_share,
                "jobs": [dataclasses.asdict(job) for job in run.jobs],
            }
            for count, paradigm, run in runs
        ],
    }


def _lines(config: JobsConfig, delays: SharingDelays, runs: list[tuple[int, str, SharingRun]]) -> list[str]:
    """The forecasts as text, line by line."""
    costs = ", ".join(
        f"{name} {value:g}"
        for name, value in dataclasses.asdict(delays).items()
        if value not in (0.0, float("inf"))
    )
    headers = ["machines", "paradigm", "makespan s", "mean job s", "cores", "network", "moves", "moving"]
    cells = [
        [
            str(count),
            paradigm,
            seconds_text(run.makespan_s),
            seconds_text(run.mean_completion_s),
            f"{run.cpu_use:.0%}",
            f"{run.network_use:.0%}",
            str(sum(job.num_moves for job in run.jobs)),
            f"{run.moving_share:.1%}",
        ]
        for count, paradigm, run in runs
    ]
    return [
        f"{config.name}: {count_text(len(config.jobs), 'parameter-server job')}",
        "",
        *format_table(headers, cells, right=(0, 2, 3, 4, 5, 6, 7)),
        "",
        f"costs: {costs or 'none'}; --cost NAME=SECONDS sets them",
        "mean job: from submission to end; cores, network: used share of the makespan; moving: share of it "
        "for which machines wait for jobs that move",
        *_left_out(sorted({count for count, _, _ in runs})),
    ]


def _left_out(counts: list[int]) -> list[str]:
    """Return notes on the parts that forecasts for these numbers of machines leave out."""
    from hpcbal.runtime.simulating.shared_jobs import MOST_FRAMED, is_framed

    lines = ["with all of max_epochs; without what apps compute for first pushes and objectives"]
    if not all(map(is_framed, counts)):
        lines.append(
            f"on more than {MOST_FRAMED} machines, frames are not simulated, and first "
            "pushes take no time at all"
        )
    return lines
