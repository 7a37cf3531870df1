"""How a parameter-server job starts and goes, or a profile of its operations."""

from __future__ import annotations

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.kinds.executors import ExecutorRuns


class ParamServerRuns(ExecutorRuns[ParamServerConfig]):
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


RUNS = ParamServerRuns()
