"""Which executors of a job on parameter servers work, which serve, and when that changes."""

from hpcbal.policies.configuring.changes import (
    Add,
    BlockAssignment,
    Delete,
    Move,
    Operation,
    Plan,
    Switch,
    What,
    plan_changes,
    renamed,
)
from hpcbal.policies.configuring.cost_model import (
    Configuration,
    EpochCost,
    Machine,
    Problem,
    Role,
    Turns,
    epoch_cost,
)
from hpcbal.policies.configuring.heterogeneous import RatedConfiguration, best_heterogeneous
from hpcbal.policies.configuring.homogeneous import best_homogeneous
from hpcbal.policies.configuring.metrics import (
    Hindsight,
    Metrics,
    ServerMetrics,
    TurnMetrics,
    estimate_machines,
    measured_bandwidth,
)
from hpcbal.policies.configuring.trigger import (
    ChangeDecision,
    MovingCost,
    Trigger,
    best_configuration,
    best_within,
    cost_of_moving,
    spread,
)

__all__ = [
    "Add",
    "BlockAssignment",
    "ChangeDecision",
    "Configuration",
    "Delete",
    "EpochCost",
    "Hindsight",
    "Machine",
    "Metrics",
    "Move",
    "MovingCost",
    "Operation",
    "Plan",
    "Problem",
    "RatedConfiguration",
    "Role",
    "ServerMetrics",
    "Switch",
    "Trigger",
    "TurnMetrics",
    "Turns",
    "What",
    "best_configuration",
    "best_heterogeneous",
    "best_homogeneous",
    "best_within",
    "cost_of_moving",
    "epoch_cost",
    "estimate_machines",
    "measured_bandwidth",
    "plan_changes",
    "renamed",
    "spread",
]
