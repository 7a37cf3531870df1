"""How many parameter-server jobs on the same machines start and go."""

from __future__ import annotations

from hpcbal.config import JobsConfig
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.handoff.submissions import with_submitted
from hpcbal.runtime.kinds.executors import ExecutorRuns
from hpcbal.runtime.kinds.kind import refusal_of_operations
from hpcbal.telemetry import RunDirectory


class JobsRuns(ExecutorRuns[JobsConfig]):
    """Many jobs, and those that are submitted to their run."""

    def requested(self, request: RunRequest, config: JobsConfig) -> JobsConfig:
        if request.num_operation_steps is not None:
            what = "one parameter-server job"
            raise InputError(refusal_of_operations(request.config_path, config.kind, what))
        return with_submitted(config, output_of(request, config))

    def with_submitted(self, config: JobsConfig, run: RunDirectory) -> JobsConfig:
        return with_submitted(config, run)


RUNS = JobsRuns()
