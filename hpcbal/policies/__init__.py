"""Pure decisions: frozen values in, frozen plans out.

This package exports the scheduling decisions. Decisions inside a training step are in `batching`,
`partitioning` and `migration`, which a plan need not load.
"""

from hpcbal.events.ensemble import Delta
from hpcbal.policies.flotilla import Flotilla, FlotillaPlanner
from hpcbal.policies.folds import order_alone, random_order, sample_order
from hpcbal.policies.placement import Placement, assign_slots, assign_slots_roughly, placement_score
from hpcbal.policies.preprocessors import num_preprocessors
from hpcbal.policies.rates import (
    RateTable,
    profile_by_name,
    profile_from_dict,
    profile_to_dict,
    profiling_counts,
    rate_key,
    starts_by_name,
    starts_from_dict,
)
from hpcbal.policies.staying import assign_slots_staying, avoid_left_out, free_where_built, without_left_out

__all__ = [
    "Delta",
    "Flotilla",
    "FlotillaPlanner",
    "Placement",
    "RateTable",
    "assign_slots",
    "assign_slots_roughly",
    "assign_slots_staying",
    "avoid_left_out",
    "free_where_built",
    "num_preprocessors",
    "order_alone",
    "placement_score",
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
