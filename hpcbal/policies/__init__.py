"""Pure decisions: frozen values in, frozen plans out.

This package exports the scheduling decisions. Decisions inside a training step are in `batching`,
`partitioning` and `migration`, which a plan need not load.
"""

from hpcbal.policies.flotilla import (
    Delta,
    Flotilla,
    FlotillaPlanner,
    create_flotilla,
    plan_all_flotillas,
)
from hpcbal.policies.left_out import avoid_left_out, without_left_out
from hpcbal.policies.placement import Placement, assign_gpus, placement_score
from hpcbal.policies.preprocessors import demand, num_preprocessors
from hpcbal.policies.profile import (
    profile_by_name,
    profile_from_dict,
    profile_to_dict,
    starts_by_name,
    starts_from_dict,
)
from hpcbal.policies.random_order import order_alone, random_order
from hpcbal.policies.rates import RateTable, profiling_counts, rate_key
from hpcbal.policies.rough_placement import assign_gpus_roughly
from hpcbal.policies.sample_order import sample_order
from hpcbal.policies.staying import assign_gpus_staying, free_where_built

__all__ = [
    "Delta",
    "Flotilla",
    "FlotillaPlanner",
    "Placement",
    "RateTable",
    "assign_gpus",
    "assign_gpus_roughly",
    "assign_gpus_staying",
    "avoid_left_out",
    "create_flotilla",
    "demand",
    "free_where_built",
    "num_preprocessors",
    "order_alone",
    "placement_score",
    "plan_all_flotillas",
    "profile_by_name",
    "profile_from_dict",
    "profile_to_dict",
    "profiling_counts",
    "random_order",
    "rate_key",
    "sample_order",
    "starts_by_name",
    "starts_from_dict",
    "without_left_out",
]
