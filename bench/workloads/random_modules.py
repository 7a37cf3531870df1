"""A module of PyTorch whose training depends on all that a checkpoint must hold, for soak_kills.py.

Dropout draws by seed, step and sample, batch normalisation moves statistics and counts batches, Adam has
moments and a count of steps.
"""

from __future__ import annotations

from torch import nn


def dropping(input_shape: tuple[int, ...], num_classes: int, rate: float = 0.3) -> nn.Module:
    """Make a small network with batch normalisation and dropout; its outputs are logits."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 16),
        nn.ReLU(),
        nn.BatchNorm1d(16),
        nn.Dropout(rate),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.BatchNorm1d(16, momentum=None),
        nn.Linear(16, num_classes),
    )
