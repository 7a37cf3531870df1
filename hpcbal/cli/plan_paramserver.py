"""`hpcbal plan` for a parameter-server job: its ranks and the command that starts it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import print_json, print_text
from hpcbal.errors import InputError

if TYPE_CHECKING:
    from hpcbal.config import ParamServerConfig


def run(args: argparse.Namespace, config: ParamServerConfig) -> int:
    """Print which ranks to request; what a step costs is measured when the job runs."""
    from hpcbal.cluster.launch_line import RanksToStart

    for option, given in (("--profile", args.profile), ("--samples", args.samples)):
        if given is not None:
            raise InputError(
                f"{option}: works with ensembles only, and {args.config} is a parameter-server job"
            )
    per_node = args.gpus_per_node or (
        config.slots.per_node if isinstance(config.slots.per_node, int) else None
    )
    executors = args.gpus if args.gpus is not None else None if per_node is None else per_node * args.nodes
    if executors is None:
        executors = max(2, sum(1 if n == "auto" else n for n in (config.workers, config.servers)))
    if executors < 2:
        raise InputError(f"got {executors} executor, allowed: 2 or more, a worker and a server")
    ranks = RanksToStart(1, executors + 1, args.cpus_per_task)
    command = ["hpcbal", "run", str(args.config)]
    for override in args.overrides:
        command += ["--set", override]
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
    if args.json:
        print_json({**facts, "command": command})
        return 0
    tuning = "changes them while it trains" if config.tune.enabled else "keeps them"
    print_text(
        "\n".join(
            [
                f"{config.name}: parameter-server job of {config.app}",
                f"ranks: {executors + 1} = 1 master + {executors} executors",
                f"workers: {config.workers}, servers: {config.servers}; the job {tuning}",
                f"start: {' '.join([*ranks.mpirun(), *command])}",
            ]
        )
    )
    return 0
