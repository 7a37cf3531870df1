"""Running statistics of a module: which of its buffers a step changes, and how a group of ranks sums them.

Buffers travel as differences, weighted like the gradients, so that all ranks of a group move them equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hpcbal.training.step_exchange import StepExchange

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


class GroupSums:
    """The sums of the synchronised layers of one model, in the order in which a step reaches them.

    Args:
        exchange: carries them out; open while a group computes a step.
    """

    def __init__(self, exchange: StepExchange) -> None:
        self.exchange = exchange
        self._num_sums = 0
        self.are_finite = True

    def begin(self) -> None:
        """Start the sums of a step."""
        self._num_sums = 0
        self.are_finite = True

    def sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks; the gradient of a sum is the sum of all ranks' gradients.

        Args:
            numbers: float64, shape (n,).
        """
        self._num_sums += 1
        total: torch.Tensor = _Sum.apply(numbers, self, self._num_sums)
        return total

    def meet(self, numbers: torch.Tensor, place: int, *, is_gradient: bool) -> torch.Tensor:
        """Perform the sum at a place of the model."""
        summed = self.exchange.sum(numbers.detach().cpu().numpy().copy(), place, is_gradient)
        found = torch.from_numpy(summed).to(numbers.device)
        if is_gradient:
            self.are_finite &= bool(torch.isfinite(found).all())
        return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, numbers: torch.Tensor, sums: GroupSums, index: int) -> torch.Tensor:
        context.sums, context.index = sums, index
        return sums.meet(numbers, 2 * index - 1, is_gradient=False)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return context.sums.meet(gradients[0], 2 * context.index, is_gradient=True), None, None


class GroupBatchNorm(torch.nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm` that sums over a trainer group, with the same parameters and names.

    In a training step of a group every rank normalises by the mean and variance of the step's whole batch, in
    which each sample counts once. So a step, and the running statistics, are the same as in one process with
    the same samples, whatever the shares. In inference and in a group of one it is a plain batch
    normalisation.
    """

    sums: GroupSums | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        sums = self.sums
        if not self.training or sums is None or not sums.exchange.is_open:
            return _BatchNorm.forward(self, input)
        channels = input.shape[1]
        axes = [0, *range(2, input.dim())]
        shape = [1, channels, *(1 for _ in axes[1:])]
        # Squares of large numbers lose small differences: each rank sums squares around its own mean, and
        # shifts them to zero in float64, where ranks can add them.
        counted = torch.tensor([input.numel() / channels], dtype=torch.float64, device=input.device)
        wide = input.to(torch.float64 if input.dtype == torch.float64 else torch.float32)
        first = wide.sum(axes).double()
        center = (first / counted).detach()
        second = (wide - center.to(wide.dtype).reshape(shape)).square().sum(axes).double()
        shift = center.to(wide.dtype).double()
        second = second + shift * (2.0 * first - counted * shift)
        summed = sums.sum(torch.cat([counted, first, second]))
        total, first, second = summed[:1], summed[1 : 1 + channels], summed[1 + channels :]
        mean = first / total
        variance = torch.relu((second - mean * (2.0 * first - total * mean)) / total)
        self._move(mean.detach(), variance.detach() * (total / torch.clamp(total - 1.0, min=1.0)).detach())
        scale = torch.rsqrt(variance + self.eps).to(wide.dtype).reshape(shape)
        result = (wide - mean.to(wide.dtype).reshape(shape)) * scale
        if self.affine:
            result = result * self.weight.reshape(shape) + self.bias.reshape(shape)
        return result.to(input.dtype)

    def _move(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics, as PyTorch does: by the variance without bias."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            momentum = self.momentum
            rate = 1.0 / float(self.num_batches_tracked) if momentum is None else momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
            self.running_var.lerp_(variance.to(self.running_var.dtype), rate)


def synchronised(model: torch.nn.Module) -> list[GroupBatchNorm]:
    """Turn every `torch.nn.SyncBatchNorm` of a model into one of a trainer group, and return these layers."""
    found = [module for module in model.modules() if type(module) is torch.nn.SyncBatchNorm]
    for module in found:
        module.__class__ = GroupBatchNorm
    return [module for module in model.modules() if isinstance(module, GroupBatchNorm)]


def exchange_length(layers: list[GroupBatchNorm]) -> int:
    """Most numbers that one of these layers sums over the ranks at once."""
    return max(1 + 2 * layer.num_features for layer in layers)
