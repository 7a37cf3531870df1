"""`hpcbal plan` for many parameter-server jobs: their ranks and the command that starts them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hpcbal.cli.options import print_json, print_text
from hpcbal.cli.plan_paramserver import asked_for, command_of, refuse_what_is_for_ensembles
from hpcbal.telemetry.views.table import count_text

if TYPE_CHECKING:
    from hpcbal.config import JobsConfig


def run(args: argparse.Namespace, config: JobsConfig) -> int:
    """Print which ranks to request, and which jobs come when.

    Raises:
        InputError: fixed groups need more machines than these.
    """
    from hpcbal.cluster.launch_line import RanksToStart
    from hpcbal.cluster.roles import LEAST_EXECUTORS
    from hpcbal.errors import InputError

    refuse_what_is_for_ensembles(args, "describes parameter-server jobs")
    given = asked_for(args, config) or sum(machine.count for machine in config.machines)
    in_groups = sum(group.machines for group in config.schedule.groups or ())
    machines = max(LEAST_EXECUTORS, given or in_groups)
    if (problem := config.schedule.groups_problem(machines)) is not None:
        raise InputError(problem)
    ranks = RanksToStart(1, machines + 1, args.cpus_per_task)
    command = command_of(args)
    if args.json:
        jobs = [{"name": job.name, "app": job.app, "arrives_s": job.arrives_s} for job in config.jobs]
        facts = {"kind": config.kind, "name": config.name, "paradigm": config.schedule.paradigm}
        print_json({**facts, "machines": machines, "ranks": machines + 1, "jobs": jobs, "command": command})
        return 0
    arrivals = sorted((job.arrives_s, job.name) for job in config.jobs if job.arrives_s > 0)
    later = ", ".join(f"{name} after {seconds:g} s" for seconds, name in arrivals)
    lines = [
        f"{config.name}: {count_text(len(config.jobs), 'parameter-server job')}, {config.schedule.paradigm}",
        f"ranks: {machines + 1} = 1 scheduler + {count_text(machines, 'machine')}",
        *([f"later: {later}"] if later else []),
        f"start: {' '.join([*ranks.mpirun(), *command])}",
    ]
    print_text("\n".join(lines))
    return 0
