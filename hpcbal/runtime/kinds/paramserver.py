"""How a job on parameter servers starts and goes, or a profile of its operations; what such jobs share."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar, cast

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.kinds.kind import KindRuns, Opened, RankWorld

if TYPE_CHECKING:
    from hpcbal.cluster.roles import Roles
    from hpcbal.planning.allocation import PredictedRun
    from hpcbal.runtime.jobs.opening import OpenedJobs
    from hpcbal.runtime.jobs.profiling import OpenedProfile
    from hpcbal.runtime.rank.context import LiveRank

P = TypeVar("P", ParamServerConfig, JobsConfig)
OpenedT = TypeVar("OpenedT", bound=Opened)


class ExecutorRuns(KindRuns[P, OpenedT]):
    """Runs whose ranks are a master and executors.

    With `slots.per_node: auto` there is an executor for each emulated machine, or else one for each core, and
    at least as many as the jobs need.
    """

    def least_executors(self, config: P) -> int:
        """Return how many executors the jobs need."""
        return LEAST_EXECUTORS

    @abstractmethod
    def predicted(self, config: P, num_executors: int) -> PredictedRun:
        """Return how long a run takes by its file, its apps and its data, whose code this runs.

        Args:
            num_executors: all ranks but the master's.

        Raises:
            InputError: the file does not say how fast machines are.
            UserCodeError: an app or a dataset raises.
        """

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


class ParamServerRuns(ExecutorRuns[ParamServerConfig, "OpenedJobs | OpenedProfile"]):
    """A job that has all executors for itself."""

    def requested(self, request: RunRequest, config: ParamServerConfig) -> ParamServerConfig:
        if request.num_operation_steps is not None and config.staleness is not None:
            given = config.consistency if isinstance(config.consistency, str) else "stale"
            raise InputError(
                f"{request.config_path}: consistency: got {given}, allowed with --operations: async; "
                "forecasts are of workers that do not wait for each other (--set consistency=async)"
            )
        return config

    def least_executors(self, config: ParamServerConfig) -> int:
        asked = sum(1 if count == "auto" else count for count in (config.workers, config.servers))
        return max(LEAST_EXECUTORS, asked)

    def predicted(self, config: ParamServerConfig, num_executors: int) -> PredictedRun:
        from hpcbal.runtime.simulating.predicted import predicted_job

        return predicted_job(config, num_executors)

    def open(self, request: RunRequest, config: ParamServerConfig) -> OpenedJobs | OpenedProfile:
        from hpcbal.runtime.jobs.opening import open_one_job
        from hpcbal.runtime.jobs.profiling import open_profile

        if request.num_operation_steps is not None:
            return open_profile(request, config, request.num_operation_steps)
        return open_one_job(request, config)

    def play(
        self,
        world: RankWorld,
        rank: LiveRank,
        request: RunRequest,
        opened: OpenedJobs | OpenedProfile | None,
        last: ExitStack,
    ) -> int:
        from hpcbal.runtime.jobs.run import profile_job, run_one_job

        config = cast("ParamServerConfig", rank.config)
        if request.num_operation_steps is not None:
            return profile_job(world.all, rank, config, cast("OpenedProfile | None", opened))
        return run_one_job(world.all, rank, config, cast("OpenedJobs | None", opened))


RUNS = ParamServerRuns()
