"""The common part of runs of parameter-server jobs, alone or with others on the same machines."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar, cast

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.kinds.kind import KindRuns, RankWorld

if TYPE_CHECKING:
    from hpcbal.cluster.roles import Roles
    from hpcbal.runtime.jobs.run import Opened
    from hpcbal.runtime.rank.context import LiveRank

P = TypeVar("P", ParamServerConfig, JobsConfig)


class ExecutorRuns(KindRuns[P, "Opened"]):
    """Runs whose ranks are a master and executors.

    With `slots.per_node: auto` there is an executor for each emulated machine, or else one for each core, and
    at least as many as the jobs need.
    """

    def least_executors(self, config: P) -> int:
        """Return how many executors the jobs need."""
        return LEAST_EXECUTORS

    def num_ranks(self, config: P, num_gpus: int, num_cores: int) -> int:
        if isinstance(config.slots.per_node, int):
            return 1 + config.slots.per_node
        emulated = sum(machine.count for machine in config.machines)
        return 1 + max(self.least_executors(config), emulated or num_cores)

    def num_busy_ranks(self, config: P, ranks: int) -> int:
        return 1 if config.machines else ranks - 1

    def roles(self, world: RankWorld, config: P) -> Roles:
        from hpcbal.cluster.discovery import discover_executors

        return discover_executors(world.all, world.node)

    def open(self, request: RunRequest, config: P) -> Opened:
        from hpcbal.runtime.jobs.run import open_run_of_jobs

        return open_run_of_jobs(request, config)

    def play(
        self, world: RankWorld, rank: LiveRank, request: RunRequest, opened: Opened | None, last: ExitStack
    ) -> int:
        from hpcbal.runtime.jobs.run import run_jobs

        config = cast(ParamServerConfig | JobsConfig, rank.config)
        is_profile = request.num_operation_steps is not None
        return run_jobs(world.all, rank, config, opened, is_profile=is_profile)
