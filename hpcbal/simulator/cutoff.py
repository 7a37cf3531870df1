"""Give up a simulated run that cannot end in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpcbal.control import DnnSpec
from hpcbal.control.state import EnsembleState
from hpcbal.policies import RateTable
from hpcbal.simulator.pass_model import PassModel


class Remaining:
    """The least time that a run still needs, whatever the schedule: `lower_bound` of what is left.

    Args:
        specs: the DNNs.
        rates: rates of all of them.
        passes: determines the length of an epoch.
        num_slots: M, >= 1.
        max_slots_per_dnn: None: M.

    Attributes:
        whole_s: the least time of all DNNs from their beginning.
    """

    def __init__(
        self,
        specs: Sequence[DnnSpec],
        rates: RateTable,
        passes: PassModel,
        num_slots: int,
        max_slots_per_dnn: int | None,
    ) -> None:
        most = num_slots if max_slots_per_dnn is None else min(num_slots, max_slots_per_dnn)
        matrix = rates.matrix([spec.dnn_id for spec in specs], most)
        epoch_s = passes.seconds(1.0)
        work = epoch_s / (matrix / np.arange(1, most + 1)).max(axis=1)
        longest = epoch_s / matrix.max(axis=1)
        self._epoch_s: Mapping[str, tuple[float, float]] = {
            spec.dnn_id: (float(own_work), float(own_longest))
            for spec, own_work, own_longest in zip(specs, work, longest, strict=True)
        }
        self._num_slots = num_slots
        self.whole_s = self._of({spec.dnn_id: spec.stop.max_epochs for spec in specs})

    def least_s(self, state: EnsembleState) -> float:
        """Seconds that no schedule can save, between two passes."""
        dnns = state.dnns
        return self._of({d: dnns[d].spec.stop.max_epochs - dnns[d].epochs for d in state.live})

    def _of(self, epochs: Mapping[str, int]) -> float:
        work_s, longest_s = 0.0, 0.0
        for dnn_id, left in epochs.items():
            work, longest = self._epoch_s[dnn_id]
            work_s += left * work
            longest_s = max(longest_s, left * longest)
        return max(work_s / self._num_slots, longest_s)
