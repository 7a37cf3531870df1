"""A makespan that no schedule can beat."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hpcbal.policies import RateTable
from hpcbal.simulator.pass_model import PassModel


def lower_bound(
    epochs: Mapping[str, int],
    num_slots: int,
    max_slots_per_dnn: int | None,
    rates: RateTable,
    passes: PassModel,
) -> float:
    """The larger of: all work done without loss on all slots, and the longest DNN at its best rate.

    The work of a DNN is its time on one slot, because rates grow more slowly than the number of slots; if
    some measured rate per slot is higher than on one slot, the highest one counts. Costs, preprocessing and
    the whole number of passes in a round are ignored, so the bound holds for any schedule.

    Args:
        epochs: epochs that each DNN has to train; DNNs that are done are left out.
        num_slots: M, >= 1.
        max_slots_per_dnn: None: M.
        rates: rates of all these DNNs.
        passes: determines the length of an epoch.

    Returns: seconds; 0 without DNNs.
    """
    if not epochs:
        return 0.0
    most = num_slots if max_slots_per_dnn is None else min(num_slots, max_slots_per_dnn)
    matrix = rates.matrix(list(epochs), most)
    per_slot = (matrix / np.arange(1, most + 1)).max(axis=1)
    samples = np.array(list(epochs.values())) * passes.seconds(1.0)  # as if each took one second
    work, longest = samples / per_slot, samples / matrix.max(axis=1)
    return max(math.fsum(work.tolist()) / num_slots, float(longest.max()))
