"""The losses of Keras as functions of torch tensors: the same arguments, the same numbers.

Each takes labels `y` and outputs `p` of a floating type, shapes (n, ...), and returns the losses of each
sample, shape (n,) or, where a sample has several, (n, ...); the caller takes the mean. Where Keras squeezes
or adds an axis of length 1 at the end of one of the two, so do these.

Source: keras/src/losses/losses.py and keras/src/backend/tensorflow/nn.py define each number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-7
"""Smallest probability, and what is added to denominators, in Keras."""

_LOG_2 = 0.6931471824645996
"""Of float32, in which Keras takes it, whatever the type of outputs."""

_NOTHING_IGNORED = -(2**62)

Axes = int | Sequence[int] | None
TorchFunction = Callable[..., Tensor]


def aligned(y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels in the type of outputs, both with the same shape, and with an axis besides samples.

    Raises:
        ValueError: if their shapes differ by more than an axis of length 1 at the end.
    """
    shapes = tuple(y.shape[1:]), tuple(p.shape[1:])
    if p.ndim == 1:
        p = p.unsqueeze(-1)
    y = y.to(p.dtype)
    if y.ndim == p.ndim + 1 and y.shape[-1] == 1:
        y = y.squeeze(-1)
    elif y.ndim == 1 and p.ndim == 2:
        y = y.unsqueeze(-1)
    elif p.ndim == y.ndim + 1 and p.shape[-1] == 1:
        p = p.squeeze(-1)
    if y.shape != p.shape:
        raise ValueError(
            f"labels have shape {shapes[0]} for each sample and predictions {shapes[1]}, allowed: the same"
        )
    return y, p


def whole(y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels as numbers of classes, and outputs with one more axis, at the end, of classes.

    Raises:
        ValueError: if outputs have another shape.
    """
    if p.ndim == 1:
        p = p.unsqueeze(-1)
    if y.ndim == p.ndim and y.shape[-1] == 1:
        y = y.squeeze(-1)
    if y.shape != p.shape[:-1]:
        raise ValueError(
            f"labels have shape {tuple(y.shape[1:])} for each sample and predictions {tuple(p.shape[1:])}, "
            "allowed: predictions with one more axis than numbers of classes"
        )
    return y.long(), p


def mean_squared_error(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    return functional.mse_loss(p, y, reduction="none").mean(-1)


def mean_absolute_error(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    return functional.l1_loss(p, y, reduction="none").mean(-1)


def mean_absolute_percentage_error(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    return 100.0 * ((y - p) / y.abs().clamp(min=EPSILON)).abs().mean(-1)


def mean_squared_logarithmic_error(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    first, second = (torch.log(each.clamp(min=EPSILON) + 1.0) for each in (p, y))
    return (first - second).square().mean(-1)


def huber(y: Tensor, p: Tensor, delta: float = 1.0) -> Tensor:
    y, p = aligned(y, p)
    return functional.huber_loss(p, y, reduction="none", delta=delta).mean(-1)


def log_cosh(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    error = p - y
    return (error - functional.logsigmoid(2.0 * error) - _LOG_2).mean(-1)


def poisson(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    return (p - y * torch.log(p + EPSILON)).mean(-1)


def kl_divergence(y: Tensor, p: Tensor) -> Tensor:
    y, p = (each.clamp(EPSILON, 1.0) for each in aligned(y, p))
    return (y * torch.log(y / p)).sum(-1)


def cosine_similarity(y: Tensor, p: Tensor, axis: int | Sequence[int] = -1) -> Tensor:
    y, p = aligned(y, p)
    dims = _dims(axis, p)
    y, p = (
        each / torch.linalg.vector_norm(each, dim=dims, keepdim=True).clamp(min=EPSILON) for each in (y, p)
    )
    return -(y * p).sum(dims)


def hinge(y: Tensor, p: Tensor) -> Tensor:
    return _hinge(y, p).mean(-1)


def squared_hinge(y: Tensor, p: Tensor) -> Tensor:
    return _hinge(y, p).square().mean(-1)


def _hinge(y: Tensor, p: Tensor) -> Tensor:
    """If all labels here are 0 or 1, they stand for -1 and 1."""
    y, p = aligned(y, p)
    is_binary = ((y == 0) | (y == 1)).all()
    return (1.0 - torch.where(is_binary, 2.0 * y - 1.0, y) * p).clamp(min=0.0)


def categorical_hinge(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    right, wrong = (y * p).sum(-1), ((1.0 - y) * p).amax(-1)
    return (wrong - right + 1.0).clamp(min=0.0)


def sparse_categorical_crossentropy(
    y: Tensor, p: Tensor, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
) -> Tensor:
    y, p = whole(y, p)
    if axis not in (-1, p.ndim - 1):
        raise ValueError(f"got axis {axis}, allowed: -1, classes are the last axis of outputs")
    if not from_logits:
        p = p.clamp(EPSILON, 1.0 - EPSILON).log()
    ignored = _NOTHING_IGNORED if ignore_class is None else int(ignore_class)
    losses = functional.cross_entropy(p.flatten(0, -2), y.flatten(), ignore_index=ignored, reduction="none")
    return losses.reshape(y.shape)


def categorical_crossentropy(
    y: Tensor, p: Tensor, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Tensor:
    """Labels are shares that sum to one: for others TensorFlow's gradient is not that of its loss."""
    y, p = aligned(y, p)
    y = _smoothed(y, label_smoothing, y.shape[-1])
    logs = torch.log_softmax(p, axis) if from_logits else _shares(p, axis).log()
    return -(y * logs).sum(axis)


def categorical_focal_crossentropy(
    y: Tensor,
    p: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    y, p = aligned(y, p)
    y = _smoothed(y, label_smoothing, y.shape[-1])
    shares = _shares(torch.softmax(p, axis) if from_logits else p, axis)
    return -(alpha * (1.0 - shares).pow(gamma) * y * shares.log()).sum(axis)


def binary_crossentropy(
    y: Tensor, p: Tensor, from_logits: bool = False, label_smoothing: float = 0.0, axis: Axes = -1
) -> Tensor:
    y, p = aligned(y, p)
    return _binary(_smoothed(y, label_smoothing, 2), p, from_logits).mean(_dims(axis, p))


def binary_focal_crossentropy(
    y: Tensor,
    p: Tensor,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: Axes = -1,
) -> Tensor:
    y, p = aligned(y, p)
    y = _smoothed(y, label_smoothing, 2)
    losses = _binary(y, p, from_logits)
    yes = torch.sigmoid(p) if from_logits else p
    right = y * yes + (1.0 - y) * (1.0 - yes)
    losses = (1.0 - right).pow(gamma) * losses
    if apply_class_balancing:
        losses = (y * alpha + (1.0 - y) * (1.0 - alpha)) * losses
    return losses.mean(_dims(axis, p))


def dice(y: Tensor, p: Tensor, axis: Axes = None) -> Tensor:
    y, p = aligned(y, p)
    dims = _dims(axis, p)
    return 1.0 - 2.0 * (y * p).sum(dims) / (y.sum(dims) + p.sum(dims) + EPSILON)


def tversky(y: Tensor, p: Tensor, alpha: float = 0.5, beta: float = 0.5, axis: Axes = None) -> Tensor:
    y, p = aligned(y, p)
    dims = _dims(axis, p)
    both = (y * p).sum(dims)
    missed, extra = ((1.0 - p) * y).sum(dims), (p * (1.0 - y)).sum(dims)
    return 1.0 - both / (both + alpha * missed + beta * extra + EPSILON)


def _binary(y: Tensor, p: Tensor, from_logits: bool) -> Tensor:
    """The cross entropy of each output."""
    if from_logits:
        return functional.binary_cross_entropy_with_logits(p, y, reduction="none")
    p = p.clamp(EPSILON, 1.0 - EPSILON)
    return -(y * p.log() + (1.0 - y) * (1.0 - p).log())


def _smoothed(y: Tensor, smoothing: float, num_classes: int) -> Tensor:
    return y * (1.0 - smoothing) + smoothing / num_classes if smoothing else y


def _shares(p: Tensor, axis: int) -> Tensor:
    """Outputs that sum to one over an axis, kept away from 0 and 1."""
    return (p / p.sum(axis, keepdim=True)).clamp(EPSILON, 1.0 - EPSILON)


def _dims(axis: Axes, p: Tensor) -> tuple[int, ...]:
    """The axes of a tensor as torch takes them; None stands for all, which leaves one number."""
    if axis is None:
        return tuple(range(p.ndim))
    return (axis,) if isinstance(axis, int) else tuple(axis)


LOSSES: Mapping[str, TorchFunction] = {
    "SparseCategoricalCrossentropy": sparse_categorical_crossentropy,
    "CategoricalCrossentropy": categorical_crossentropy,
    "CategoricalFocalCrossentropy": categorical_focal_crossentropy,
    "CategoricalHinge": categorical_hinge,
    "BinaryCrossentropy": binary_crossentropy,
    "BinaryFocalCrossentropy": binary_focal_crossentropy,
    "Hinge": hinge,
    "SquaredHinge": squared_hinge,
    "MeanSquaredError": mean_squared_error,
    "MeanAbsoluteError": mean_absolute_error,
    "MeanAbsolutePercentageError": mean_absolute_percentage_error,
    "MeanSquaredLogarithmicError": mean_squared_logarithmic_error,
    "Huber": huber,
    "LogCosh": log_cosh,
    "Poisson": poisson,
    "KLDivergence": kl_divergence,
    "CosineSimilarity": cosine_similarity,
    "Dice": dice,
    "Tversky": tversky,
}
"""By the name of the class in `keras.losses`."""
