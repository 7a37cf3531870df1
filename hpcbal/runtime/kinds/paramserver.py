"""How a parameter-server job starts and goes, or a profile of its operations."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias, cast

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.kinds.executors import ExecutorRuns
from hpcbal.runtime.kinds.kind import RankWorld

if TYPE_CHECKING:
    from hpcbal.runtime.paramserver.opening import OpenedJob
    from hpcbal.runtime.paramserver.profiling import OpenedProfile
    from hpcbal.runtime.rank.context import LiveRank

    Opened: TypeAlias = OpenedJob | OpenedProfile


class ParamServerRuns(ExecutorRuns[ParamServerConfig, "Opened"]):
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

    def open(self, request: RunRequest, config: ParamServerConfig) -> Opened:
        from hpcbal.runtime.paramserver.opening import open_job
        from hpcbal.runtime.paramserver.profiling import open_profile

        if request.num_operation_steps is not None:
            return open_profile(request, config, request.num_operation_steps)
        return open_job(request, config)

    def play(
        self, world: RankWorld, rank: LiveRank, request: RunRequest, opened: Opened | None, last: ExitStack
    ) -> int:
        from hpcbal.runtime.paramserver.play import play_job
        from hpcbal.runtime.paramserver.profiling import play_profile

        config = cast(ParamServerConfig, rank.config)
        if request.num_operation_steps is not None:
            return play_profile(world.all, rank, config, cast("OpenedProfile | None", opened))
        return play_job(world.all, rank, config, cast("OpenedJob | None", opened))


RUNS = ParamServerRuns()
