"""`torch.nn.SyncBatchNorm` over the samples of all ranks of a trainer group, however a step is split."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hpcbal.training.step_exchange import StepExchange


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
