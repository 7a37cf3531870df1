"""Buffers that a step of a module changes besides its weights: running means and variances, and counters.

They travel as differences, weighted like the gradients, so that all ranks of a group move them equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _BatchNorm

COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a module; its tensor may be replaced by another one in a step."""

    module: torch.nn.Module
    name: str
    path: str

    @property
    def tensor(self) -> torch.Tensor:
        found = self.module._buffers[self.name]
        assert found is not None
        return found.detach() if found.requires_grad else found

    def let_go_of_graph(self) -> None:
        """Free the graph of activations that a module has kept in the buffer, without `detach`."""
        self.module._buffers[self.name] = self.tensor


def buffers_of(model: torch.nn.Module) -> list[Buffer]:
    """All buffers of a module and of those within it, each once."""
    found: list[Buffer] = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, tensor in module._buffers.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append(Buffer(module, name, f"{path}.{name}" if path else name))
    return found


class Statistics:
    """The buffers that steps change.

    Attributes:
        tensors: values of those that travel, in a stable order.

    Args:
        changing: buffers that a training step changes.
        left: buffers that it changes too, but that get their values of before after each step.
    """

    def __init__(self, changing: Iterable[Buffer], left: Iterable[Buffer] = ()) -> None:
        buffers = list(changing)
        self._left = list(left)
        self._moving = [buffer for buffer in buffers if buffer.tensor.is_floating_point()]
        self._counters = [buffer for buffer in buffers if buffer.name == COUNTER]
        place = {(id(buffer.module), buffer.name): i for i, buffer in enumerate(self._moving)}
        self._pairs = [
            (place[id(buffer.module), "running_var"], index, buffer.module)
            for index, buffer in enumerate(self._moving)
            if buffer.name == "running_mean"
            and isinstance(buffer.module, _BatchNorm)
            and (id(buffer.module), "running_var") in place
        ]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [buffer.tensor for buffer in self._moving]

    def kept(self) -> list[torch.Tensor]:
        """Copies of all, for `restore` and `settle`."""
        return [buffer.tensor.clone() for buffer in (*self._moving, *self._counters, *self._left)]

    def restore(self, kept: Sequence[torch.Tensor]) -> None:
        """Give all buffers the values that they had when `kept` was called."""
        for buffer, before in zip((*self._moving, *self._counters), kept, strict=False):
            buffer.module._buffers[buffer.name] = buffer.tensor.copy_(before)
        self.settle(kept)

    def settle(self, kept: Sequence[torch.Tensor]) -> None:
        """End a step: those that do not move get their values of before, and no other keeps a graph."""
        for buffer in self._moving:
            buffer.let_go_of_graph()
        for buffer, before in zip(self._left, kept[len(kept) - len(self._left) :], strict=True):
            buffer.module._buffers[buffer.name] = before

    def differences(self, before: Sequence[torch.Tensor], share: float) -> list[torch.Tensor]:
        """By how much a forward pass has moved them, times the rank's share of the step.

        That of a variance also includes the square of the mean's difference. So the sum over the ranks is
        the variance of the whole step, including the variance between the ranks' means.

        Args:
            before: what `kept` returned before that pass.
        """
        found = [now - then for now, then in zip(self.tensors, before, strict=False)]
        for variance, mean, module in self._pairs:
            rate = _rate_of(module, before_update=False)
            if rate > 0.0:
                found[variance] += found[mean] ** 2 / rate
        return [difference * share for difference in found]

    def apply(self, differences: Sequence[torch.Tensor]) -> None:
        """Move them by differences summed over the group, and count a step."""
        moved = list(differences)
        for variance, mean, module in self._pairs:
            rate = _rate_of(module, before_update=True)
            if rate > 0.0:
                least = -rate * self._moving[variance].tensor  # for samples that do not vary at all
                moved[variance] = torch.maximum(moved[variance] - moved[mean] ** 2 / rate, least)
        for buffer, difference in zip(self._moving, moved, strict=True):
            buffer.tensor.add_(difference)
        for buffer in self._counters:
            buffer.tensor.add_(1)


def _rate_of(module: torch.nn.Module, *, before_update: bool) -> float:
    """How much of the difference to its batch a batch normalisation moves by.

    Args:
        before_update: whether the step is not yet in its counter.
    """
    momentum = module.momentum
    if momentum is not None:
        return float(momentum)  # type: ignore[arg-type]
    steps = int(module.num_batches_tracked) + int(before_update)  # type: ignore[arg-type]
    return 1.0 / max(steps, 1)
