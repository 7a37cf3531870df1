"""Optimizers of `torch.optim` by name, and their state as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hpcbal.config.schema.optimizer import TORCH_OPTIMIZERS, OptimizerConfig
from hpcbal.errors import InputError
from hpcbal.training.user_model import check_optimizer_args
from hpcbal.training.weights import Array, Arrays

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
