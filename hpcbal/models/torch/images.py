"""Residual and densely connected networks of PyTorch, with the layers of `hpcbal.models`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from torch import nn

from hpcbal.models.batch_norm import BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM, check_batch_norm
from hpcbal.models.densenet import densenet_plan
from hpcbal.models.resnet import LARGE_IMAGE_PIXELS, resnet_plan


def resnet(
    input_shape: tuple[int, int, int],
    num_classes: int,
    depth: int,
    width: int | None = None,
    stem: Literal["small", "large"] | None = None,
    batch_norm: Literal["local", "sync"] = "local",
) -> nn.Module:
    """Build a ResNet that returns logits.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes, depth, width, stem, batch_norm: as for `hpcbal.models.resnet`.

    Raises:
        ValueError: if an argument is out of range; the message says what is allowed.
    Source: [RESNET] Sec. 4.1 and 4.2; stride in the 3x3 convolution of a bottleneck (v1.5).
    """
    stem = stem or ("large" if min(input_shape[1:]) >= LARGE_IMAGE_PIXELS else "small")
    check_batch_norm(batch_norm)
    kind, blocks_per_stage = resnet_plan(depth, stem)
    channels = width if width is not None else {"small": 16, "large": 64}[stem]
    if channels < 1 or num_classes < 2:
        raise ValueError(f"got width {channels} and num_classes {num_classes}, allowed: >= 1 and >= 2")
    parts: list[tuple[str, nn.Module]] = []
    if stem == "small":
        parts.append(("stem", _convolution(input_shape[0], channels, 3, 1, batch_norm)))
    else:
        parts.append(("stem", _convolution(input_shape[0], channels, 7, 2, batch_norm)))
        parts.append(("stem_pool", nn.MaxPool2d(3, 2, padding=1)))
    given = channels
    for stage, num_blocks in enumerate(blocks_per_stage):
        for index in range(num_blocks):
            stride = 2 if stage and not index else 1
            block = Residual(given, channels * 2**stage, stride, kind, batch_norm)
            parts.append((f"stage{stage}_block{index}", block))
            given = block.channels
    parts += [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    parts.append(("logits", nn.Linear(given, num_classes)))
    return nn.Sequential(OrderedDict(parts))


def densenet(
    input_shape: tuple[int, int, int],
    num_classes: int,
    depth: int,
    growth_rate: int = 12,
    num_blocks: int = 3,
    compression: float = 0.5,
    bottleneck: bool | None = None,
    stem: Literal["small", "large"] | None = None,
    batch_norm: Literal["local", "sync"] = "local",
) -> nn.Module:
    """Build a DenseNet that returns logits.

    Args:
        input_shape: (channels, height, width) of an image.
        num_classes, depth, growth_rate, num_blocks, compression, bottleneck, stem, batch_norm: as for
            `hpcbal.models.densenet`.

    Raises:
        ValueError: if an argument is out of range; the message says what is allowed.
    Source: [DENSENET] Sec. 3, Table 1; DenseNet-BC is bottleneck=True, compression=0.5.
    """
    stem = stem or ("large" if min(input_shape[1:]) >= LARGE_IMAGE_PIXELS else "small")
    bottleneck = stem == "large" if bottleneck is None else bottleneck
    if growth_rate < 1 or num_classes < 2 or not 0.0 < compression <= 1.0:
        raise ValueError(
            f"got growth_rate {growth_rate}, num_classes {num_classes}, compression {compression}; "
            "allowed: >= 1, >= 2, and above 0 up to 1"
        )
    check_batch_norm(batch_norm)
    layers_per_block = densenet_plan(depth, stem, num_blocks, bottleneck)
    channels = 2 * growth_rate
    parts: list[tuple[str, nn.Module]] = []
    if stem == "small":
        parts.append(("stem", _plain_convolution(input_shape[0], channels, 3, 1)))
    else:
        parts.append(("stem", _convolution(input_shape[0], channels, 7, 2, batch_norm)))
        parts.append(("stem_pool", nn.MaxPool2d(3, 2, padding=1)))
    for block, num_layers in enumerate(layers_per_block):
        if block:
            kept = int(channels * compression)
            parts.append((f"transition{block}", _transition(channels, kept, batch_norm)))
            channels = kept
        for index in range(num_layers):
            layer = DenseLayer(channels, growth_rate, batch_norm, bottleneck=bottleneck)
            parts.append((f"block{block}_layer{index}", layer))
            channels += growth_rate
    parts.append(("last", nn.Sequential(_norm(channels, batch_norm), nn.ReLU())))
    parts += [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    parts.append(("logits", nn.Linear(channels, num_classes)))
    return nn.Sequential(OrderedDict(parts))


class Residual(nn.Module):
    """Convolutions whose result is added to their input: (n, given, h, w) -> (n, channels, h/s, w/s)."""

    def __init__(self, given: int, width: int, stride: int, kind: str, batch_norm: str) -> None:
        super().__init__()
        self.channels = width if kind == "basic" else 4 * width
        if kind == "basic":
            sizes = [(given, width, 3, stride), (width, width, 3, 1)]
        else:
            sizes = [(given, width, 1, 1), (width, width, 3, stride), (width, self.channels, 1, 1)]
        last = len(sizes) - 1
        self.branch = nn.Sequential(
            *(_convolution(*size, batch_norm, relu=index < last) for index, size in enumerate(sizes))
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or given != self.channels:
            self.shortcut = _convolution(given, self.channels, 1, stride, batch_norm, relu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


class DenseLayer(nn.Module):
    """Adds `growth_rate` channels to its input: (n, c, h, w) -> (n, c + growth_rate, h, w)."""

    def __init__(self, given: int, growth_rate: int, batch_norm: str, *, bottleneck: bool) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        if bottleneck:
            parts += [_norm(given, batch_norm), nn.ReLU(), _plain_convolution(given, 4 * growth_rate, 1, 1)]
            given = 4 * growth_rate
        parts += [_norm(given, batch_norm), nn.ReLU(), _plain_convolution(given, growth_rate, 3, 1)]
        self.new = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.new(x)], dim=1)


def _transition(given: int, channels: int, batch_norm: str) -> nn.Module:
    """(n, given, h, w) -> (n, channels, ceil(h/2), ceil(w/2))."""
    return nn.Sequential(
        _norm(given, batch_norm),
        nn.ReLU(),
        _plain_convolution(given, channels, 1, 1),
        nn.AvgPool2d(2, ceil_mode=True),
    )


def _convolution(
    given: int, channels: int, size: int, stride: int, batch_norm: str, relu: bool = True
) -> nn.Module:
    """Convolution, batch norm, and usually ReLU: (n, given, h, w) -> (n, channels, h/stride, w/stride)."""
    parts = [_plain_convolution(given, channels, size, stride), _norm(channels, batch_norm)]
    return nn.Sequential(*parts, nn.ReLU()) if relu else nn.Sequential(*parts)


def _plain_convolution(given: int, channels: int, size: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(given, channels, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


def _norm(channels: int, batch_norm: str) -> nn.Module:
    kind = nn.SyncBatchNorm if batch_norm == "sync" else nn.BatchNorm2d
    return kind(channels, eps=BATCH_NORM_EPSILON, momentum=1.0 - BATCH_NORM_MOMENTUM)
