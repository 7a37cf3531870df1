"""Warn of batches that the data cannot fill, once its size is known."""

from __future__ import annotations

from hpcbal.config.schema.ensemble import EnsembleConfig

_MAX_NAMES = 4


def batches_above(config: EnsembleConfig, num_train: int) -> str | None:
    """Name the DNNs whose batch is larger than the training data; None if there are none.

    Args:
        num_train: training samples of a pass, >= 1.
    """
    large = [f"{dnn.name} ({dnn.batch_size})" for dnn in config.dnns if dnn.batch_size > num_train]
    if not large:
        return None
    shown = ", ".join(large[:_MAX_NAMES])
    more = f" and {len(large) - _MAX_NAMES} more" if len(large) > _MAX_NAMES else ""
    return (
        f"batch_size is more than the {num_train} training samples, so a pass is a single step: "
        f"{shown}{more}; use at most {num_train}"
    )
