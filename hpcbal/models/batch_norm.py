"""Batch normalisation for our networks: over each rank's own samples, or over all ranks of the group."""

from __future__ import annotations

from typing import Any

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
