"""Predictions of an ensemble as columns with a row per sample, for a file of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import Kind
from hpcbal.ensembling.calibration import entropies, tempered

UNKNOWN = -1
"""The predicted class, and the label, of a sample that cannot be used."""


def prediction_columns(
    rows: NDArray[np.float64], spread: NDArray[np.float64], kind: Kind, fitted: float | None
) -> dict[str, NDArray[Any]]:
    """Return what an ensemble predicts for n items, and how uncertain it is, by the names of columns.

    Args:
        rows: mean of the members' predictions, shape (n, columns), see `items_of`.
        spread: mean over members of the entropies of their own rows, in nats; of values, of their squares;
            shape (n,).
        kind: what is predicted.
        fitted: the temperature of the ensemble, or half the width of its interval; None: not known.

    Returns: arrays of shape (n,), and `probabilities` of shape (n, num_classes). Probabilities and intervals
        are calibrated where `fitted` is known; `within` and `between` split the entropy of the mean as it is,
        in nats.

    Source: [DEPEWEG] Sec. 3 for the split.
    """
    if kind == "values":
        mean = rows[:, 0]
        found: dict[str, NDArray[Any]] = {
            "predicted": mean,
            "standard_deviation": np.sqrt(np.maximum(spread - np.square(mean), 0.0)),
        }
        if fitted is not None:
            found |= {"lower": mean - fitted, "upper": mean + fitted}
        return found
    probabilities = rows if fitted is None else tempered(rows, fitted)
    predicted = probabilities.argmax(axis=1)
    shown: Mapping[str, NDArray[Any]] = {"probabilities": probabilities}
    if kind == "labels":
        shown = {"probability": probabilities[:, 1]}
    return {
        "predicted": predicted.astype(np.int32),
        "confidence": probabilities.max(axis=1),
        "within": spread,
        "between": np.maximum(entropies(rows) - spread, 0.0),
        **shown,
    }


def columns_of_samples(
    columns: Mapping[str, NDArray[Any]], is_known: NDArray[np.bool_], shape: tuple[int, ...]
) -> dict[str, NDArray[Any]]:
    """Return columns of items as columns with a row per sample.

    Args:
        columns: of the known items, shape (k, ...).
        is_known: which of all items are known, shape (num_samples * items per sample,).
        shape: of the items of a sample.

    Returns: shape (num_samples, *shape, ...); floating-point numbers as float32, but values, deviations and
        intervals as float64. Unknown ones are NaN, and `UNKNOWN` where they are whole numbers.
    """
    found = {}
    for name, known in columns.items():
        is_whole = known.dtype.kind == "i"
        dtype: Any = np.int32 if is_whole else np.float64 if "standard_deviation" in columns else np.float32
        every = np.full((len(is_known), *known.shape[1:]), UNKNOWN if is_whole else np.nan, dtype)
        every[is_known] = known
        found[name] = every.reshape(-1, *shape, *known.shape[1:])
    return found
