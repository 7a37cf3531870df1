"""Modules that users could have written, right and wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.tensor(input_shape).prod()), num_classes))


class _Words(nn.Embedding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.long()).flatten(1)


def embedded(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(_Words(9, 3, sparse=True), nn.LazyLinear(num_classes))


def normalised_vector(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Batch norm of one number for each channel, which PyTorch refuses to train with one sample."""
    size = int(torch.tensor(input_shape).prod())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, num_classes)
    )


def normalised(
    input_shape: tuple[int, ...], num_classes: int, kind: str = "BatchNorm2d", factor: float | None = None
) -> nn.Module:
    """Batch norm takes means off, so a bias before it would have only rounding errors as its gradient."""
    norm = getattr(nn, kind)
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3, padding=1, bias=False),
        norm(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, bias=False),
        norm(3, momentum=factor),
        nn.Flatten(),
        nn.LazyLinear(num_classes),
    )


class _Pooled(nn.Module):
    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Conv2d(channels, 3, 3)
        self.norm = nn.BatchNorm2d(3, eps=0.001, momentum=0.01)  # as Keras has them
        self.logits = nn.Linear(3, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.logits(self.norm(torch.tanh(self.features(x))).mean((2, 3)))
        return out


def pooled(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The twin of `training_models:pooled`."""
    return _Pooled(input_shape[0], num_classes)


def dropping(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    inputs = int(torch.tensor(input_shape).prod())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, num_classes)
    )


def softmax(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(linear(input_shape, num_classes), nn.Softmax(1))


def a_class(input_shape: tuple[int, ...], num_classes: int) -> type[nn.Module]:
    return nn.Linear


def nothing(input_shape: tuple[int, ...], num_classes: int) -> None:
    linear(input_shape, num_classes)


def wrapped(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.DataParallel(linear(input_shape, num_classes))


def without_weights(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(num_classes))


def too_wide(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return linear(input_shape, num_classes + 1)


def elsewhere(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    module = linear(input_shape, num_classes)
    module.aside = nn.Linear(2, 2, device="meta")
    return module


def with_buffer_elsewhere(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    module = linear(input_shape, num_classes)
    module.register_buffer("seen", torch.zeros(2, device="meta"))
    return module


def wrapped_within(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.DataParallel(nn.LazyLinear(num_classes)))


def never_called(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    module = _Around(linear(input_shape, num_classes))
    module.head = nn.LazyLinear(3)
    return module


class _Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def in_halves(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    module = linear(input_shape, num_classes)
    module.aside = nn.Linear(2, 2, dtype=torch.float16)
    return module


class _Changing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 1.0
        return self.inner(x)


def in_place(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Changing(linear(input_shape, num_classes))


class _Failing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such thing")


def failing(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Failing(linear(input_shape, num_classes))


class _Dict(_Changing):
    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": self.inner(x)}


def of_dict(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Dict(linear(input_shape, num_classes))


class _Nan(_Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / 0.0 * 0.0


def of_nan(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Nan(linear(input_shape, num_classes))


class _Masked(nn.Module):
    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Linear(channels, 8)
        self.logits = nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        real = mask.unsqueeze(-1).to(x.dtype)
        return self.logits((torch.relu(self.features(x)) * real).sum(1) / real.sum(1))


def masked(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Masked(input_shape[1], num_classes)


class _Tied(nn.Module):
    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, inputs, bias=False)
        self.second = nn.Linear(inputs, inputs, bias=False)
        self.second.weight = self.first.weight
        self.logits = nn.Linear(inputs, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


def tied(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Tied(int(torch.tensor(input_shape).prod()), num_classes)


class _Counting(nn.Module):
    """Keeps a mean of its inputs in a buffer that it replaces, and constants in another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("constant", torch.arange(100.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean().detach()
        return self.inner(x)


def counting(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Counting(linear(input_shape, num_classes))


def failing_series(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, num_classes))


class _WithToken(nn.Module):
    """Has a parameter of its own beside its layers, in itself and in a part."""

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(inputs))
        self.part = nn.Linear(inputs, num_classes)
        self.part.scale = nn.Parameter(torch.ones(num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x.flatten(1) + self.shift) * self.part.scale


def with_token(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _WithToken(int(torch.tensor(input_shape).prod()), num_classes)


class _Long(_Masked):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 100:
            raise ValueError("a window of 100 steps does not fit")
        return super().forward(x, mask)


def long_series(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Long(input_shape[1], num_classes)


class _Unused(_WithToken):
    """One part is never used, and another one only for samples whose sum is above a limit."""

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__(inputs, num_classes)
        self.never = nn.Linear(3, 3)
        self.rarely = nn.Linear(inputs, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        large = x.flatten(1).sum(1) > 100.0
        if large.any():
            found = found.clone()
            found[large] += self.rarely(x.flatten(1)[large])
        return found


def unused(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Unused(int(torch.tensor(input_shape).prod()), num_classes)


class _Listed(nn.Module):
    """Keeps a layer where PyTorch does not look for it."""

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.hidden = [nn.Linear(inputs, 7)]
        self.logits = nn.Linear(7, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.hidden[0](x.flatten(1)))


def listed(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Listed(int(torch.tensor(input_shape).prod()), num_classes)


class _Scale:
    """A plain object that holds a weight."""

    def __init__(self) -> None:
        self.by = nn.Parameter(torch.ones(7))


class _Helped(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.scale, self.logits = _Scale(), nn.Linear(7, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(x.flatten(1)[:, :7] * self.scale.by)


def with_weight_in_object(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Helped(num_classes)


class _Penalised(_Listed):
    """A teacher in a list, and a loss with the gradient by samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = super().forward(x)
        return hidden + self.logits(x.flatten(1)[:, :7])

    def loss(self, batch: Any) -> torch.Tensor:
        with torch.enable_grad():
            x = batch.x.clone().requires_grad_()
            outputs = self(x)
            (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return outputs.square().sum(1) + gradient.flatten(1).square().sum(1)


def penalised(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Penalised(int(torch.tensor(input_shape).prod()), num_classes)


class _Complex(_Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(self.inner(x))


def of_complex(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _Complex(linear(input_shape, num_classes))


class _AlwaysDropping(_Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.inner(x))


def always_dropping(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Also in inference: it does not look at `self.training`."""
    return _AlwaysDropping(linear(input_shape, num_classes))


class _Named(nn.Module):
    """Calls a layer with its input as a named argument."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(input=x)


def groups(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Normalises groups of channels; with a frozen stem the first ones have inputs without a gradient."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3),
        _Named(nn.GroupNorm(2, 8)),
        nn.Conv2d(8, 4, 3),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.LazyLinear(num_classes),
    )
