"""Which parameter-server jobs share machines, and how many ([PS] Ch. 4)."""

from hpcbal.policies.grouping.filling import filled
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.policies.grouping.model import (
    cluster_utilization,
    group_iteration_s,
    score,
    utilization,
    worth,
)
from hpcbal.policies.grouping.regrouping import Situation, regroup, similar_jobs
from hpcbal.policies.grouping.scheduling import schedule
from hpcbal.policies.grouping.spilling import (
    SpillableJob,
    SpillClimber,
    blocks_on_disk,
    next_to_spill,
    returns,
)
from hpcbal.policies.grouping.values import Group, Grouping, JobLoad

__all__ = [
    "Group",
    "Grouping",
    "JobLoad",
    "JobMemory",
    "MemoryLimit",
    "Situation",
    "SpillClimber",
    "SpillableJob",
    "blocks_on_disk",
    "cluster_utilization",
    "filled",
    "group_iteration_s",
    "next_to_spill",
    "regroup",
    "returns",
    "schedule",
    "score",
    "similar_jobs",
    "utilization",
    "worth",
]
