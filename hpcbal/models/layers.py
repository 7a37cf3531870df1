"""Layers that our networks add to those of Keras: batch normalisation over ranks, convolutions over time."""

from __future__ import annotations

from typing import Any

import keras

BATCH_NORM_MOMENTUM = 0.9
BATCH_NORM_EPSILON = 1e-5

BATCH_NORMS = ("local", "sync")


def check_batch_norm(kind: str) -> None:
    """Reject unknown kinds.

    Raises:
        ValueError: if there is no such kind; the message lists the known ones.
    """
    if kind not in BATCH_NORMS:
        raise ValueError(f"batch_norm: got {kind!r}, allowed: {', '.join(map(repr, BATCH_NORMS))}")


def normalised(x: Any, batch_norm: str, name: str) -> Any:
    """Apply batch normalisation to a Keras tensor; variables and their names are the same for both kinds.

    Args:
        x: (n, ..., channels).
        batch_norm: "local" (Keras' own) or "sync" (`SyncBatchNormalization`).
        name: name of the layer.
    """
    from keras import layers

    from hpcbal.models.sync_batch_norm import SyncBatchNormalization

    layer = SyncBatchNormalization if batch_norm == "sync" else layers.BatchNormalization
    return layer(momentum=BATCH_NORM_MOMENTUM, epsilon=BATCH_NORM_EPSILON, name=name)(x)


class TemporalCnn(keras.Model):
    """Convolutions that see zeros beyond the end of a series, padded or not; see `hpcbal.models.series`."""

    def __init__(self, num_classes: int, filters: int, kernel_size: int, blocks: int) -> None:
        super().__init__()
        self.convolutions = [
            keras.layers.Conv1D(filters, kernel_size, padding="same", dilation_rate=2**block, use_bias=False)
            for block in range(blocks)
        ]
        self.norms = [keras.layers.LayerNormalization() for _ in range(blocks)]
        self.classifier = keras.layers.Dense(num_classes)

    def call(self, x: Any, mask: Any = None) -> Any:
        """Logits, shape (n, num_classes).

        Args:
            x: series, shape (n, length, channels).
            mask: True within a series, shape (n, length); None: all series have this length.
        """
        real = keras.ops.ones_like(x[..., :1])
        if mask is not None:
            real = keras.ops.cast(mask, x.dtype)[..., None]
        for convolve, normalize in zip(self.convolutions, self.norms, strict=True):
            x = keras.ops.relu(normalize(convolve(x * real)))
        mean = keras.ops.sum(x * real, axis=1) / keras.ops.sum(real, axis=1)
        return self.classifier(mean)
