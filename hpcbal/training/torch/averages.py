"""Exponential averages of the weights of a module, updated after each step of its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from hpcbal.training.torch.optimizers import OPTIMIZER, Named
from hpcbal.training.weights import TRAINED, Array, Arrays

UPDATES = f"{OPTIMIZER}averaged_updates"
"""Updates that are in the averages: the first one takes the weights as they are."""


class Averages:
    """Averages of trainable parameters: after the first update the weights, then decay*a + (1-decay)*w.

    Before it they are the initial weights. Buffers have none.

    Args:
        parameters: by their names in the `state_dict`.
        decay: 0 < decay < 1; None: there are no averages, and all below does nothing.

    Source: as `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`, and `use_ema` of Keras.
    """

    def __init__(self, parameters: Named, decay: float | None) -> None:
        self._parameters: Named = {} if decay is None else parameters
        self._decay = decay
        self._num_updates = 0
        self._averages = [parameter.detach().clone() for parameter in self._parameters.values()]

    def update(self) -> None:
        """Take the weights of this moment in."""
        if self._decay is None:
            return
        weight = 1.0 - self._decay if self._num_updates else 1.0
        now = [parameter.detach() for parameter in self._parameters.values()]
        torch._foreach_lerp_(self._averages, now, weight)
        self._num_updates += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the module have the averages as its weights, and take its own back at the end."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for index, parameter in enumerate(self._parameters.values()):
            parameter.data, self._averages[index] = self._averages[index], parameter.data

    def arrays(self) -> Arrays:
        """Copies of what belongs into a state besides the averages: the weights, and how many updates."""
        if self._decay is None:
            return {}
        found = {
            f"{TRAINED}{name}": parameter.detach().to("cpu", copy=True).numpy()
            for name, parameter in self._parameters.items()
        }
        return {**found, UPDATES: np.array(self._num_updates, np.int64)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `arrays` returned; the averages have been loaded while they were in place."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(np.array(arrays[f"{TRAINED}{name}"])))
        self._num_updates = int(arrays.get(UPDATES, 0))
