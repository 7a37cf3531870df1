"""Modules with unusual buffers, parameters or outputs, as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

INPUTS = 36


class _Linear(nn.Module):
    def __init__(self, num_classes: int, **buffers: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, num_classes)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=not name.startswith("passing"))

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x.flatten(1))


class _Counting(_Linear):
    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.steps += 1
            self.passing += 1.0
        return super().forward(x)


def counting_steps(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    steps = torch.zeros((), dtype=torch.int64)
    return _Counting(num_classes, steps=steps, passing=torch.zeros(()))


class _Growing(_Linear):
    def forward(self, x: torch.Tensor) -> Any:
        if len(self.passing) < len(x):
            self.passing = torch.zeros(len(x))
        return super().forward(x) + self.passing[: len(x), None]


def growing(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Growing(num_classes, passing=torch.zeros(1))


class _Centred(_Linear):
    """Keeps a mean of its activations without detaching it."""

    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * found.mean(0)
        return found - self.mean


def centred(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Centred(num_classes, mean=torch.zeros(num_classes))


def after_zeros(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    layer = nn.Conv2d(input_shape[0], 4, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(num_classes))


class _Halves(_Linear):
    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.mean.mul_(0.5).add_(1.0)
        return super().forward(x)


def in_halves(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Halves(num_classes, mean=torch.zeros(2, dtype=torch.float16))


def spread(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Linear(num_classes, constant=torch.ones(1).expand(5))


class _Sums(nn.Module):
    """Two parameters with the same gradient, and one whose gradient is one number for all of it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(num_classes, INPUTS))
        self.other = nn.Parameter(torch.ones(num_classes, INPUTS))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ (self.one + self.other).T + self.scale.sum() * torch.arange(5.0).to(x)


def sums(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Sums(num_classes)


def convolutions(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.Flatten(),
        nn.Linear(24, num_classes),
    )


class _Auxiliary(_Linear):
    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        return (found, found) if self.training else found


def auxiliary(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Auxiliary(num_classes)


class _Detached(_Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x).detach()


def detached(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Detached(num_classes)


class _Noisy(_Linear):
    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            x += 1.0
        return super().forward(x)


def noisy(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Noisy(num_classes)


class _Extra(_Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"steps": 1}

    def set_extra_state(self, state: Any) -> None:
        self.steps = state["steps"]


def extra(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Extra(num_classes)


def in_bfloat16(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Linear(num_classes, constant=torch.zeros(2, dtype=torch.bfloat16))


def compiled(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return torch.compile(_Linear(num_classes))


def loss_that_marks(y: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    y[y == 255] = 0
    return nn.functional.cross_entropy(outputs, y, reduction="none")
