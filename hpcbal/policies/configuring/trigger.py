"""Decide when to look for a better configuration, and whether one is worth the change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring.cost_model import Configuration
from hpcbal.policies.configuring.metrics import Metrics
from hpcbal.policies.configuring.moving import MovingCost

Reason = Literal["gain", "resources", "forced"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """Settings of the decision.

    Attributes:
        min_gain: least part of an epoch that a change must save, 0..1.
        min_turns: fresh turns of every worker before a decision, >= 1.

    Source: [PS] Sec. 3.3.1, Optimization Trigger Policy. Deviation: the cost of the change counts; the paper
        leaves it out.
    """

    min_gain: float = 0.05
    min_turns: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.min_gain < 1:
            raise PolicyError(f"min_gain: got {self.min_gain}, allowed: at least 0 and below 1")
        if self.min_turns < 1:
            raise PolicyError(f"min_turns: got {self.min_turns}, allowed: at least 1")

    def is_due(self, metrics: Metrics, configuration: Configuration) -> bool:
        """Whether every worker has been measured often enough since the last change."""
        fresh = [metrics.executors[i].fresh_turns for i in configuration.workers]
        return bool(fresh) and min(fresh) >= self.min_turns

    def decide(
        self,
        current_s: float,
        wanted_s: float,
        moving: MovingCost,
        epochs_left: float,
        resources_changed: bool = False,
        leaving: Collection[int] = (),
    ) -> Decision:
        """Whether to change to the wanted configuration.

        The gain is what an epoch gets shorter. It must reach `min_gain`, and over the epochs that are left it
        must save more time than the change costs. Machines that leave have to be emptied whatever it costs.

        Args:
            current_s, wanted_s: predicted epoch times, > 0. Both are predictions, so that an error of the
                model that both share cancels out.
            epochs_left: to the end of the job, at most.
            resources_changed: whether machines came or went, for the reason that is reported.
            leaving: machines that own blocks and must leave.
        """
        gain = 1.0 - wanted_s / current_s
        saved_s = (current_s - wanted_s) * epochs_left - moving.lost_s
        if leaving:
            return Decision(True, "forced", gain, saved_s)
        # A gain of exactly min_gain counts, whatever its last bit.
        change = gain >= self.min_gain - 1e-12 and gain > 0 and saved_s > 0
        return Decision(change, "resources" if resources_changed else "gain", gain, saved_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to change, and why.

    Attributes:
        change: whether to change.
        reason: what made the change be considered.
        gain: predicted part of an epoch that is saved; negative if epochs get longer.
        saved_s: predicted time saved until the end of the job, less the cost of the change.
    """

    change: bool
    reason: Reason
    gain: float
    saved_s: float
