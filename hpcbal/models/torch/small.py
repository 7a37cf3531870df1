"""Small networks of PyTorch: fully connected, and recurrent over series of unequal length."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from hpcbal.models.series import check_series


def mlp(
    input_shape: tuple[int, ...], num_classes: int, units: int = 64, layers: int = 2, dropout: float = 0.0
) -> nn.Module:
    """Make a fully connected network; its outputs are logits, or numbers to predict.

    Args:
        input_shape: of a sample; it is flattened.
        num_classes: number of outputs.
        units: of each hidden layer, >= 1.
        layers: hidden layers, >= 0.
        dropout: share of each hidden layer that is dropped while training, 0 <= dropout < 1.

    Raises:
        ValueError: if an argument is out of range.
    """
    if units < 1 or layers < 0 or not 0.0 <= dropout < 1.0:
        raise ValueError(
            f"got units {units}, layers {layers} and dropout {dropout}, "
            "allowed: >= 1, >= 0 and 0 <= dropout < 1"
        )
    given = int(torch.tensor(input_shape).prod())
    parts: list[nn.Module] = [nn.Flatten()]
    for _ in range(layers):
        parts += [nn.Linear(given, units), nn.ReLU()]
        if dropout:
            parts.append(nn.Dropout(dropout))
        given = units
    return nn.Sequential(*parts, nn.Linear(given, num_classes))


def recurrent(
    input_shape: tuple[int | None, ...],
    num_classes: int,
    units: int = 32,
    layers: int = 1,
    bidirectional: bool = True,
) -> nn.Module:
    """Make a gated recurrent network (GRU) that classifies a series by its last state.

    Args:
        input_shape: (length or None, channels).
        num_classes: number of logits.
        units: size of the state of each layer and direction, >= 1.
        layers: recurrent layers, >= 1.
        bidirectional: whether each layer also reads the series from its end.

    Raises:
        ValueError: if an argument is out of range.

    Source: K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
        translation", arXiv:1406.1078, 2014.
    """
    check_series(input_shape, units=units, layers=layers)
    assert input_shape[1] is not None
    return Recurrent(input_shape[1], num_classes, units, layers, bidirectional)


class Recurrent(nn.Module):
    """A GRU over padded series, which are packed; the last state of each direction gives the logits."""

    def __init__(self, channels: int, outputs: int, units: int, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, units, layers, batch_first=True, bidirectional=bidirectional)
        self.directions = 2 if bidirectional else 1
        self.logits = nn.Linear(units * self.directions, outputs)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Classify series.

        Args:
            x: shape (n, longest, channels).
            lengths: steps of each series, int64, shape (n,), >= 1; None: all of them.
        """
        series = x
        if lengths is not None:
            series = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, state = self.gru(series)
        last = state[-self.directions :]
        return self.logits(last.transpose(0, 1).flatten(1))
