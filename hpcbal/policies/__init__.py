"""Pure decisions: frozen values in, frozen plans out."""

from hpcbal.policies.batching import BATCHING, split_evenly
from hpcbal.policies.flotilla import Delta, Flotilla, create_flotilla, plan_all_flotillas
from hpcbal.policies.placement import Placement, assign_gpus, placement_score
from hpcbal.policies.preprocessors import demand, num_preprocessors
from hpcbal.policies.profile import profile_by_name, profile_from_dict, profile_to_dict
from hpcbal.policies.random_order import random_order
from hpcbal.policies.rates import RateTable, profiling_counts, rate_key
from hpcbal.policies.sample_order import sample_order

__all__ = [
    "BATCHING",
    "Delta",
    "Flotilla",
    "Placement",
    "RateTable",
    "assign_gpus",
    "create_flotilla",
    "demand",
    "num_preprocessors",
    "placement_score",
    "plan_all_flotillas",
    "profile_by_name",
    "profile_from_dict",
    "profile_to_dict",
    "profiling_counts",
    "random_order",
    "rate_key",
    "sample_order",
    "split_evenly",
]
