"""Modules that compute their losses themselves, right and wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.logits = nn.Linear(inputs, outputs)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.logits(x.flatten(1))


class _CrossEntropy(_Linear):
    """The default loss; in a pair with outputs if wanted."""

    def __init__(self, inputs: int, outputs: int, pair: bool) -> None:
        super().__init__(inputs, outputs)
        self._pair = pair

    def loss(self, batch: Any) -> Any:
        assert batch.mask is None
        assert batch.lengths is None
        outputs = self(batch.x)
        losses = functional.cross_entropy(outputs, batch.y, reduction="none")
        return (losses, outputs) if self._pair else losses


class _Softmax(_CrossEntropy):
    """Returns probabilities; its loss takes their logarithm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(-1)

    def loss(self, batch: Any) -> torch.Tensor:
        return functional.nll_loss(self(batch.x).log(), batch.y, reduction="none")


class _Yes(_Linear):
    """The probability that a sample is not of class 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sigmoid()

    def loss(self, batch: Any) -> torch.Tensor:
        return functional.binary_cross_entropy(
            self(batch.x)[:, 0], batch.y.clamp(0, 1).to(batch.x.dtype), reduction="none"
        )


def probabilities(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Softmax(int(torch.tensor(input_shape).prod()), num_classes, pair=False)


def of_yes(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Yes(int(torch.tensor(input_shape).prod()), 1)


def cross_entropy(input_shape: tuple[int, ...], num_classes: int, pair: bool = False) -> nn.Module:
    return _CrossEntropy(int(torch.tensor(input_shape).prod()), num_classes, pair)


class _Denoiser(_Linear):
    """Learns its samples from noisy ones; a layer that only the loss uses has statistics of its own."""

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs, inputs)
        self.norm = nn.BatchNorm1d(inputs)

    def loss(self, batch: Any) -> torch.Tensor:
        clean = batch.x.flatten(1)
        found = self.norm(self(clean + 0.1 * torch.randn_like(clean)))
        return (found - clean).square().mean(1)


def denoiser(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Denoiser(int(torch.tensor(input_shape).prod()))


class _OfSeries(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scores = nn.Linear(channels, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.scores(x).squeeze(-1) * mask).sum(1, keepdim=True)

    def loss(self, batch: Any) -> torch.Tensor:
        assert torch.equal(batch.lengths, batch.mask.sum(1))
        return (self(batch.x, batch.mask).squeeze(1) / batch.lengths - batch.y).square()


def of_series(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _OfSeries(input_shape[-1])


WRONG = {
    "a_mean": lambda own, batch: functional.cross_entropy(own(batch.x), batch.y),
    "of_classes": lambda own, batch: own(batch.x).square(),
    "a_list": lambda own, batch: functional.cross_entropy(own(batch.x), batch.y, reduction="none").tolist(),
    "of_nan": lambda own, batch: own(batch.x).sum(1) / 0.0 * 0.0,
    "without_gradient": lambda own, batch: own(batch.x).detach().sum(1),
    "of_argmax": lambda own, batch: own(batch.x).argmax(1).to(batch.x.dtype),
    "mixing": lambda own, batch: own(batch.x).sum(1) - own(batch.x).mean(),
    "in_place": lambda own, batch: own(batch.x.mul_(2.0)).sum(1),
    "labels_in_place": lambda own, batch: own(batch.x).sum(1) * batch.y.clamp_(0, 1),
    "odd_pair": lambda own, batch: (own(batch.x).sum(1), own(batch.x)[:, :2]),
    "failing": lambda own, batch: batch.pixels,
}


class _Wrong(_Linear):
    def __init__(self, inputs: int, outputs: int, kind: str) -> None:
        super().__init__(inputs, outputs)
        self._kind = kind

    def loss(self, batch: Any) -> Any:
        return WRONG[self._kind](self, batch)


def wrong(input_shape: tuple[int, ...], num_classes: int, kind: str) -> nn.Module:
    return _Wrong(int(torch.tensor(input_shape).prod()), num_classes, kind)


def an_attribute(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    module = _Linear(int(torch.tensor(input_shape).prod()), num_classes)
    module.loss = nn.CrossEntropyLoss()
    return module
