"""How a parameter-server job starts and goes, or a profile of its operations."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.kinds.executors import ExecutorRuns
from hpcbal.runtime.kinds.kind import RankWorld

if TYPE_CHECKING:
    from hpcbal.planning.allocation import PredictedRun
    from hpcbal.runtime.jobs.opening import OpenedJobs
    from hpcbal.runtime.jobs.profiling import OpenedProfile
    from hpcbal.runtime.rank.context import LiveRank


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

        config = cast(ParamServerConfig, rank.config)
        if request.num_operation_steps is not None:
            return profile_job(world.all, rank, config, cast("OpenedProfile | None", opened))
        return run_one_job(world.all, rank, config, cast("OpenedJobs | None", opened))


RUNS = ParamServerRuns()
