"""Deal samples of unequal size to the workers of a group; pure decisions."""

from hpcbal.policies.samples.chronica import EpochQueues, Indicators, shuffle
from hpcbal.policies.samples.orders import order_in_windows
from hpcbal.policies.samples.task import SampleTask, SampleTooLargeError, StepCost, checked_sizes, imbalance
from hpcbal.policies.samples.within_batch import deal, deal_by_weight

__all__ = [
    "EpochQueues",
    "Indicators",
    "SampleTask",
    "SampleTooLargeError",
    "StepCost",
    "checked_sizes",
    "deal",
    "deal_by_weight",
    "imbalance",
    "order_in_windows",
    "shuffle",
]
