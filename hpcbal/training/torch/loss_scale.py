"""The factor on a loss in float16, the same on all ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcbal.training.scaling import FIRST_SCALE, GROW_AFTER, LARGEST_SCALE, LEAST_SCALE
from hpcbal.training.weights import Array, Arrays

_SCALE = "optimizer/loss_scale"
_STEPS = "optimizer/steps_of_loss_scale"


class LossScale:
    """The factor on the loss of all ranks of a group; it follows from what they have summed, so it is equal.

    Attributes:
        scale: the factor.

    Source: P. Micikevicius et al., "Mixed precision training", ICLR 2018, Sec. 3.2; it changes as in Keras.
    """

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self._steps = 0
        self._skipped = 0

    @property
    def may_shrink(self) -> bool:
        """Whether an overflow may be one of the scale, not of the network."""
        return self.scale > LEAST_SCALE

    def update(self, *, finite: bool) -> None:
        """Move the scale after a step.

        Args:
            finite: whether the gradients of all ranks were; otherwise the step was skipped.
        """
        if not finite:
            self.scale, self._steps = max(self.scale * 0.5, LEAST_SCALE), 0
            self._skipped += 1
            return
        self._steps += 1
        if self._steps >= GROW_AFTER:
            self.scale, self._steps = min(self.scale * 2.0, LARGEST_SCALE), 0

    def take_skipped(self) -> int:
        """Number of updates that were skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def arrays(self) -> Arrays:
        """Scale and steps since it changed, for the checkpoint."""
        return {_SCALE: np.array(self.scale, np.float32), _STEPS: np.array(self._steps, np.int64)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `arrays` returned."""
        self.scale, self._steps = float(arrays[_SCALE]), int(arrays[_STEPS])
