"""How good answers are: accuracy, negative log-likelihood and calibration; errors of predicted values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY, Answers

NUM_BINS = 15
"""Of equal width, as in [GUO]."""


def class_scores(answers: Answers, labels: NDArray[np.int64]) -> dict[str, float]:
    """Scores of predicted classes.

    Args:
        answers: of n >= 1 items.
        labels: the right classes, shape (n,).

    Returns:
        accuracy: share of right items, 0..1. nll: mean negative log-likelihood of the right class, in nats.
        calibration_error: see `calibration_error`.
    """
    is_right = answers.predicted == labels
    return {
        "accuracy": float(is_right.mean()),
        "nll": float(-np.log(np.maximum(answers.truth, TINY)).mean()),
        "calibration_error": calibration_error(answers.confidence, is_right),
    }


def calibration_error(confidence: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far confidence is from accuracy, 0..1.

    Items are put into `NUM_BINS` bins by confidence, ((m-1)/M, m/M]; the result is the mean over bins of
    |accuracy - mean confidence|, weighted by the items of each.

    Args:
        confidence: probability of the predicted class, shape (n,), n >= 1.
        is_right: whether that class is right, shape (n,).

    Source: [GUO] Eq. 3.
    """
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    surplus = np.bincount(bins, is_right - confidence, NUM_BINS)  # items * (accuracy - confidence), by bin
    return float(np.abs(surplus).sum() / len(confidence))


def value_scores(values: NDArray[np.float64], labels: NDArray[np.float64]) -> dict[str, float]:
    """Errors of predicted values.

    Args:
        values: shape (n,), n >= 1.
        labels: the right values, shape (n,).

    Returns: mean squared error (mse) and mean absolute error (mae).
    """
    errors = values - labels
    return {"mse": float(np.square(errors).mean()), "mae": float(np.abs(errors).mean())}
