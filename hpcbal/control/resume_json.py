"""Write a round's plan as JSON, and read it back to continue the round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbal.control.messages import GroupPlan, RoundPlan
from hpcbal.values import Position


def round_plan_to_dict(plan: RoundPlan) -> dict[str, Any]:
    """A plan as plain JSON values."""
    return {
        "index": plan.index,
        "groups": [{"dnn": group.dnn_id, "gpus": list(group.gpus)} for group in plan.groups],
        "first_pass": plan.first_pass,
        "start": {dnn_id: [position.pass_index, position.offset] for dnn_id, position in plan.start.items()},
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
        groups=tuple(GroupPlan(group["dnn"], tuple(group["gpus"])) for group in fields["groups"]),
        first_pass=fields["first_pass"],
        start={dnn_id: Position(*position) for dnn_id, position in fields["start"].items()},
        epochs=dict(fields["epochs"]),
        num_preprocessors=fields["num_preprocessors"],
        predicted_rate_samples_per_s=dict(fields["predicted_rate_samples_per_s"]),
        num_gpus=fields["num_gpus"],
        last_pass=fields["last_pass"],
    )
