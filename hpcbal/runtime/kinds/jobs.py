"""How many parameter-server jobs on the same machines start and go."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from hpcbal.config import JobsConfig
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.handoff.submissions import with_submitted
from hpcbal.runtime.kinds.kind import RankWorld, refusal_of_operations
from hpcbal.runtime.kinds.paramserver import ExecutorRuns
from hpcbal.telemetry.files.run_directory import RunDirectory

if TYPE_CHECKING:
    from hpcbal.planning.allocation import PredictedRun
    from hpcbal.runtime.jobs.opening import OpenedJobs
    from hpcbal.runtime.rank.context import LiveRank


class JobsRuns(ExecutorRuns[JobsConfig, "OpenedJobs"]):
    """Many jobs, and those that are submitted to their run."""

    def requested(self, request: RunRequest, config: JobsConfig) -> JobsConfig:
        if request.num_operation_steps is not None:
            what = "one parameter-server job"
            raise InputError(refusal_of_operations(request.config_path, config.kind, what))
        return with_submitted(config, output_of(request, config))

    def with_submitted(self, config: JobsConfig, run: RunDirectory) -> JobsConfig:
        return with_submitted(config, run)

    def predicted(self, config: JobsConfig, num_executors: int) -> PredictedRun:
        from hpcbal.runtime.simulating.predicted import predicted_jobs

        return predicted_jobs(config, num_executors)

    def open(self, request: RunRequest, config: JobsConfig) -> OpenedJobs:
        from hpcbal.runtime.jobs.opening import open_many_jobs

        return open_many_jobs(request, config)

    def play(
        self,
        world: RankWorld,
        rank: LiveRank,
        request: RunRequest,
        opened: OpenedJobs | None,
        last: ExitStack,
    ) -> int:
        from hpcbal.runtime.jobs.run import run_many_jobs

        return run_many_jobs(world.all, rank, cast("JobsConfig", rank.config), opened)


RUNS = JobsRuns()
