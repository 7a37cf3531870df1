"""Which parameter-server jobs share machines, and how many ([PS] Ch. 4)."""

from hpcbal.policies.grouping.groups import (
    Grouping,
    JobGroup,
    JobLoad,
    group_iteration_s,
    score,
    worth,
)
from hpcbal.policies.grouping.memory import (
    JobMemory,
    MemoryLimit,
    SpillableJob,
    SpillClimber,
    blocks_on_disk,
    next_to_spill,
    returns,
)
from hpcbal.policies.grouping.regrouping import Situation, filled, regroup, similar_jobs
from hpcbal.policies.grouping.scheduling import schedule

__all__ = [
    "Grouping",
    "JobGroup",
    "JobLoad",
    "JobMemory",
    "MemoryLimit",
    "Situation",
    "SpillClimber",
    "SpillableJob",
    "blocks_on_disk",
    "filled",
    "group_iteration_s",
    "next_to_spill",
    "regroup",
    "returns",
    "schedule",
    "score",
    "similar_jobs",
    "worth",
]
