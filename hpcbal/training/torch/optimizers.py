"""Optimizers of `torch.optim` and their state, averages of weights, and the scale of a loss in float16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hpcbal.config.schema.optimizer import TORCH_OPTIMIZERS, OptimizerConfig
from hpcbal.errors import InputError
from hpcbal.training.objective import FIRST_SCALE, GROW_AFTER, LARGEST_SCALE, LEAST_SCALE
from hpcbal.training.user_model import check_optimizer_args
from hpcbal.training.weights import TRAINED, Array, Arrays

OPTIMIZER = "optimizer/"
Named = Mapping[str, torch.nn.Parameter]
"""Trainable parameters by their names in the `state_dict`."""


def make_optimizer(dnn_name: str, settings: OptimizerConfig, parameters: Named) -> torch.optim.Optimizer:
    """Make an optimizer of `torch.optim`; its settings mean what they mean there.

    So `weight_decay` is added to the gradient, but for adamw, nadam and radam as PyTorch documents them.

    Raises:
        InputError: if PyTorch has no such optimizer, or it does not have a given setting.
    """
    kind = getattr(torch.optim, TORCH_OPTIMIZERS.get(settings.name, ""), None)
    if kind is None:
        raise InputError(
            f"DNN {dnn_name}: optimizer.name: got {settings.name!r}, allowed for a model of PyTorch: "
            f"{', '.join(name for name, found in TORCH_OPTIMIZERS.items() if hasattr(torch.optim, found))}"
        )
    check_optimizer_args(dnn_name, settings, kind)
    arguments: dict[str, Any] = {"lr": settings.learning_rate, **settings.args}
    for key in ("momentum", "nesterov", "weight_decay"):
        if getattr(settings, key):
            arguments[key] = getattr(settings, key)
    excluded = settings.no_weight_decay
    kept = [tensor for name, tensor in parameters.items() if any(part in name for part in excluded)]
    others = [tensor for name, tensor in parameters.items() if not any(part in name for part in excluded)]
    groups = [{"params": others}] if others else []
    if kept:
        groups.append({"params": kept, "weight_decay": 0.0})  # type: ignore[dict-item]
    try:
        return kind(groups, **arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"DNN {dnn_name}: optimizer {settings.name}: {error}") from error


class OptimizerState:
    """The state of an optimizer by name, `optimizer/<parameter>/<number or tensor>`.

    Most optimizers of PyTorch make the state of a parameter in the first step in which it has a gradient.
    Until then there is none to save.

    Args:
        optimizer: of `parameters`.
        parameters: by their names in the `state_dict`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Named) -> None:
        self._optimizer = optimizer
        self._parameters = parameters

    def arrays(self) -> Arrays:
        """Copies of all there is, in stable order."""
        found: Arrays = {}
        for name, parameter in self._parameters.items():
            state = self._optimizer.state.get(parameter, {})
            for key in sorted(state):
                array = _array_of(state[key])
                if array is not None:
                    found[f"{OPTIMIZER}{name}/{key}"] = array
        return found

    def make(self) -> None:
        """Let the optimizer make its state, if it has not; weights stay as they are."""
        parameters = list(self._parameters.values())
        if all(self._optimizer.state.get(parameter) for parameter in parameters):
            return
        kept = [parameter.detach().clone() for parameter in parameters]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        with torch.no_grad():
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.copy_(before)
                parameter.grad = None

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Replace the state; the arrays are known to fit. A parameter without any has no state."""
        for name, parameter in self._parameters.items():
            state = self._optimizer.state[parameter]
            if state and not any(f"{OPTIMIZER}{name}/{key}" in arrays for key in state):
                del self._optimizer.state[parameter]
                continue
            for key in sorted(state):
                array = arrays.get(f"{OPTIMIZER}{name}/{key}")
                if array is None:
                    continue
                if torch.is_tensor(state[key]):
                    state[key].copy_(torch.from_numpy(np.array(array)))
                else:
                    state[key] = type(state[key])(array[()])


def _array_of(value: Any) -> Array | None:
    """A copy of a number or tensor of a state; None for what is neither."""
    if torch.is_tensor(value):
        copied: Array = value.detach().to("cpu", copy=True).numpy()
        return copied
    return np.array(value) if isinstance(value, int | float) else None


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
