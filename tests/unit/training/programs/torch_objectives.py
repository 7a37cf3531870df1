"""Losses and metrics as users write them for torch, right and wrong."""

from __future__ import annotations

from typing import Any

import torch


def quantile(labels: Any, outputs: Any, share: float = 0.5) -> Any:
    difference = labels.unsqueeze(-1) - outputs
    return torch.maximum(share * difference, (share - 1.0) * difference)


def within_one(labels: Any, predictions: Any) -> Any:
    return (labels.unsqueeze(-1) - predictions).abs() <= 1.0


def of_classes(labels: Any, outputs: Any) -> Any:
    assert (labels.dtype, outputs.dtype) == (torch.int64, torch.float64)
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


def mean_of_batch(labels: Any, outputs: Any) -> Any:
    return (labels.unsqueeze(-1) - outputs).square().mean()


def ranked(labels: Any, outputs: Any) -> Any:
    return (outputs[:, 0] - outputs.mean()).square()


def of_columns(labels: Any, outputs: Any) -> Any:
    return outputs.mean(0)


def raising(labels: Any, outputs: Any) -> Any:
    raise ValueError("no such label")


def nothing(labels: Any, outputs: Any) -> None: ...


def as_torch(pred: Any, target: Any) -> Any:
    return (pred - target).square()


def detached(labels: Any, outputs: Any) -> Any:
    return (labels.unsqueeze(-1) - outputs.detach()).square()


def by_numpy(labels: Any, outputs: Any) -> Any:
    return torch.as_tensor(labels.numpy() - outputs.numpy()[:, 0])


def unnamed(a: Any, b: Any) -> Any:
    return (a.unsqueeze(-1) - b).square()


class Scaled(torch.nn.Module):
    """A module that is a loss, called as hpcbal calls losses."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, labels: Any, outputs: Any) -> Any:
        return self.scale * (labels.unsqueeze(-1) - outputs).abs()


class Turned(torch.nn.Module):
    """The same as torch calls losses."""

    def forward(self, input: Any, target: Any) -> Any:
        return (input - target).abs()


class Fourth(torch.nn.modules.loss._Loss):
    """A loss like torch's own, which takes outputs first."""

    def forward(self, outputs: Any, labels: Any) -> Any:
        assert self.reduction == "none"
        return (outputs - labels) ** 4


class Smoothed(torch.nn.CrossEntropyLoss):
    """A loss of torch with another default."""

    def __init__(self, reduction: str) -> None:
        super().__init__(reduction=reduction, label_smoothing=0.1)


smoothed = Smoothed("none")
of_logits = torch.nn.BCEWithLogitsLoss(reduction="none")
mean_of_logits = torch.nn.BCEWithLogitsLoss()
turned = Turned()


class Counting:
    """Keeps a state, as metrics of Keras and torchmetrics do."""

    def update(self, preds: Any, target: Any) -> None: ...

    def compute(self) -> float:
        return 0.0

    def __call__(self, preds: Any, target: Any) -> float:
        return 0.0


class Uncalled:
    """An object that cannot be called."""


class Learning(Scaled):
    def __init__(self) -> None:
        super().__init__(1.0)
        self.scale = torch.nn.Parameter(torch.ones(()))


def clamping_many(labels: Any, outputs: Any) -> Any:
    if len(labels) > 3:
        labels.clamp_(max=1)
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
