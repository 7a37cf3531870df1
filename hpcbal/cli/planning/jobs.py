"""`hpcbal plan` for many parameter-server jobs: their ranks and the command that starts them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import Answer
from hpcbal.cli.planning.paramserver import (
    asked_for,
    check_open,
    executors_on,
    launch_facts,
    refuse_what_is_for_ensembles,
    start_lines,
    time_facts,
    time_lines,
    times_of,
)
from hpcbal.cli.planning.prediction import Sources
from hpcbal.telemetry.views.table import count_text

if TYPE_CHECKING:
    from hpcbal.config import JobsConfig
    from hpcbal.planning.allocation import PredictedRun


def answer(args: argparse.Namespace, config: JobsConfig, warn: Callable[[str], None]) -> Answer:
    """Say which ranks to request, and which jobs come when.

    Raises:
        InputError: fixed groups need more machines than these.
    """
    from hpcbal.cluster.roles import LEAST_EXECUTORS
    from hpcbal.errors import InputError
    from hpcbal.planning.paramserver import default_executors

    refuse_what_is_for_ensembles(args, "describes parameter-server jobs")
    machines = max(LEAST_EXECUTORS, asked_for(args, config, default_executors(config)))
    if (problem := config.schedule.groups_problem(machines)) is not None:
        raise InputError(problem)
    jobs = [{"name": job.name, "app": job.app, "arrives_s": job.arrives_s} for job in config.jobs]
    facts: dict[str, Any] = {"kind": config.kind, "name": config.name, "paradigm": config.schedule.paradigm}
    facts |= {"machines": machines, "ranks": machines + 1, "jobs": jobs}
    arrivals = sorted((job.arrives_s, job.name) for job in config.jobs if job.arrives_s > 0)
    later = ", ".join(f"{name} after {seconds:g} s" for seconds, name in arrivals)
    times = times_of(config, args, machines, warn)
    lines = [
        f"{config.name}: {count_text(len(config.jobs), 'parameter-server job')}, {config.schedule.paradigm}",
        f"ranks: {machines + 1} = 1 scheduler + {count_text(machines, 'machine')}",
        *([f"later: {later}"] if later else []),
        *time_lines(times),
        *start_lines(args, machines),
    ]
    return Answer(facts | time_facts(times) | launch_facts(args, machines), lambda: lines)


def predicted(
    config: JobsConfig, sources: Sources, num_nodes: int, slots_per_node: int
) -> tuple[PredictedRun, int]:
    """Predict the jobs on so many nodes; returns the number of machines too; see `prediction_of`."""
    from hpcbal.runtime.simulating.predicted import predicted_jobs

    check_open(sources)
    machines = executors_on(num_nodes, slots_per_node)
    return predicted_jobs(config, machines), machines
