"""Decide how many samples of a step each trainer of a group takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hpcbal.policies.batching.even import Even, Fixed, split_evenly
from hpcbal.policies.batching.fitted import Fitted
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu
from hpcbal.policies.batching.lb_bsp_gpu import LbBspGpu
from hpcbal.policies.batching.min_max import scale_shares
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchTask,
    Cadence,
    Decision,
    Observation,
    WorkerLimits,
)

BATCHING: Mapping[str, BatchingPolicy[Any]] = MappingProxyType(
    {
        "even": Even(),
        "fitted": Fitted(),
        "fixed": Fixed(),
        "lb-bsp-cpu": LbBspCpu(),
        "lb-bsp-gpu": LbBspGpu(),
    }
)

__all__ = [
    "BATCHING",
    "BatchTask",
    "BatchingPolicy",
    "Cadence",
    "Decision",
    "Observation",
    "WorkerLimits",
    "scale_shares",
    "split_evenly",
]
