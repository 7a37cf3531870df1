"""Convolutions over time that do not see the padding of a batch."""

from __future__ import annotations

from typing import Any

import keras


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
