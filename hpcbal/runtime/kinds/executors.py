"""The common part of runs of parameter-server jobs, alone or with others on the same machines."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.runtime.kinds.kind import KindRuns, Opened, RankWorld

if TYPE_CHECKING:
    from hpcbal.cluster.roles import Roles
    from hpcbal.planning.allocation import PredictedRun

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
