"""Write a round's plan as JSON and read it back, for the ledger and for a resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbal.control.messages import GroupPlan, Position, RoundPlan


def round_plan_to_dict(plan: RoundPlan) -> dict[str, Any]:
    """A plan as plain JSON values."""
    return {
        "index": plan.index,
        "groups": [{"dnn": g.dnn_id, "gpus": list(g.gpus)} for g in plan.groups],
        "first_pass": plan.first_pass,
        "start": {dnn: [p.pass_index, p.offset] for dnn, p in plan.start.items()},
        "epochs": dict(plan.epochs),
        "num_preprocessors": plan.num_preprocessors,
        "predicted_rate_samples_per_s": dict(plan.predicted_rate_samples_per_s),
        "num_gpus": plan.num_gpus,
        "last_pass": plan.last_pass,
    }


def round_plan_from_dict(fields: Mapping[str, Any]) -> RoundPlan:
    """The inverse of `round_plan_to_dict`."""
    return RoundPlan(
        index=fields["index"],
        groups=tuple(GroupPlan(g["dnn"], tuple(g["gpus"])) for g in fields["groups"]),
        first_pass=fields["first_pass"],
        start={dnn: Position(*position) for dnn, position in fields["start"].items()},
        epochs=dict(fields["epochs"]),
        num_preprocessors=fields["num_preprocessors"],
        predicted_rate_samples_per_s=dict(fields["predicted_rate_samples_per_s"]),
        num_gpus=fields["num_gpus"],
        last_pass=fields["last_pass"],
    )
