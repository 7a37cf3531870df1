"""The needs of a configuration: nodes, ranks, cores, GPUs and time, and why."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from hpcbal.cluster.roles import LEAST_EXECUTORS, num_ranks_needed
from hpcbal.config import EnsembleConfig, JobsConfig, ParamServerConfig
from hpcbal.config.load import AnyConfig
from hpcbal.errors import InputError
from hpcbal.telemetry.views.table import count_text


@dataclass(frozen=True, slots=True)
class Needs:
    """The numbers to ask for.

    Attributes:
        num_nodes, ranks_per_node: numbers, >= 1.
        cores_per_rank: cores; None: as many as the system gives.
        gpus_per_node: GPUs, >= 0.
        time_s: time limit, in seconds.
        why: sentences.
    """

    num_nodes: int
    ranks_per_node: int
    cores_per_rank: int | None
    gpus_per_node: int
    time_s: int
    why: tuple[str, ...]


def needs_of(args: argparse.Namespace, config: AnyConfig) -> Needs:
    """Return what a run needs.

    Raises:
        InputError: if the configuration leaves open what only the allocation would tell, or gives no time.
    """
    ranks, gpus, why = _ranks(args.nodes, config)
    if args.time is not None:
        time_s, reason = args.time, "time: as given by --time"
    elif config.walltime is not None:
        # The run stops before its walltime, and must not be killed by a limit that is shorter.
        time_s, reason = math.ceil(config.walltime), "time: the walltime of the configuration"
    else:
        raise InputError("no time limit: give --time H:MM, or walltime in the configuration")
    return Needs(args.nodes, ranks, None, gpus, time_s, (why, reason))


def _ranks(num_nodes: int, config: AnyConfig) -> tuple[int, int, str]:
    """Return the number of ranks and of GPUs of a node, and a sentence."""
    per_node = config.slots.per_node
    if isinstance(config, EnsembleConfig):
        if not isinstance(per_node, int):
            raise InputError(
                "slots.per_node is auto, which is known only inside the allocation; give it, for example "
                "--set slots.per_node=4"
            )
        ranks = num_ranks_needed(per_node, config.slots.preprocessors_per_node)
        is_on_gpus = config.slots.device == "gpu" and not config.backend.is_emulated
        preprocessors = count_text(config.slots.preprocessors_per_node, "preprocessor")
        why = (
            f"ranks on each node: {count_text(per_node, 'trainer')}, {preprocessors}, and one more, which is "
            "the scheduler on the first node"
        )
        return ranks, per_node if is_on_gpus else 0, why
    if isinstance(per_node, int):
        return per_node + 1, 0, f"ranks on each node: slots.per_node {per_node} + 1"
    others = _executors(config)
    ranks = math.ceil((others + 1) / num_nodes)
    return ranks, 0, f"ranks: 1 master + {count_text(others, 'executor')}, spread evenly over the nodes"


def _executors(config: ParamServerConfig | JobsConfig) -> int:
    if isinstance(config, ParamServerConfig):
        from hpcbal.planning.paramserver import default_executors

        return default_executors(config)
    in_groups = sum(group.machines for group in config.schedule.groups or ())
    return max(LEAST_EXECUTORS, sum(machine.count for machine in config.machines) or in_groups)
