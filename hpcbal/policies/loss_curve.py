"""Extrapolate the loss curve of a training to its target ([PS] Sec. 4.5 asks for it)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEAST_VALUES = 4
"""Values of the objective from which a curve is extrapolated."""

NUM_FLOORS, NUM_PASSES = 40, 4
"""Values that are tried for what the objective approaches, each time nearer to the best one."""


def epochs_to_target(values: Sequence[float], target: float, most: float) -> float:
    """Epochs until an objective reaches its target, if it goes on as it has begun.

    The curve is loss(k) = 1 / (a * k + b) + c with a, b > 0 after k epochs. For each c of a grid below the
    least loss, which is refined around the best one, a line through 1 / (loss - c) is fitted; the c with the
    least squared error of the losses counts.

    Args:
        values: of a loss, after epochs 1, 2, ...; lower is better.
        target: at which the job ends.
        most: epochs at most, which is also the answer where nothing can be told: there are fewer than four
            values, the loss does not fall, or the curve ends above the target.

    Returns: > 0 and at most `most`.

    Source: the curve that Optimus fits to losses (Peng et al., EuroSys 2018, Sec. 3.1), one of the baselines
        of [PS] Sec. 4.4.1.
    """
    losses = np.asarray(values, np.float64)
    if len(losses) < LEAST_VALUES or not np.isfinite(losses).all() or losses[-1] >= losses[0]:
        return most
    epochs = np.arange(1.0, len(losses) + 1)
    least, span = float(losses.min()), float(losses.max() - losses.min())
    losses = (losses - least) / span  # 0 to 1
    low, high = 1e-3, 10.0
    best: tuple[float, float, float, float] | None = None  # squared error, how far c is below 0, a, b
    for _ in range(NUM_PASSES):
        for depth in np.geomspace(low, high, NUM_FLOORS).tolist():
            above = losses + depth
            slope, start = np.polyfit(epochs, 1.0 / above, 1, w=above**2)
            line = slope * epochs + start
            if slope <= 0 or (line <= 0).any():
                continue
            error = float(((1.0 / line - above) ** 2).sum())
            if best is None or error < best[0]:
                best = error, depth, float(slope), float(start)
        if best is None:
            return most
        step = (high / low) ** (1 / (NUM_FLOORS - 1))
        low, high = best[1] / step, best[1] * step
    assert best is not None
    _, depth, slope, start = best
    wanted = (target - least) / span + depth
    if wanted <= 0:
        return most
    return float(min(most, max(1.0, (1.0 / wanted - start) / slope - len(losses))))


POWERS = (0.05, 0.5, 1.0, 2.0)
"""How fast the fall of a logarithm slows down, see `future_loss`; the first is nearly a power law."""

START_DEVIATION = 2.0
FALL_MEAN, FALL_DEVIATION = 0.6, 1.0
"""The logarithm now, and its fall from the first epoch to the one asked for, before any loss is known."""

NOISE, NOISE_WEIGHT = 0.08, 2.0
"""The noise of a logarithm, before any loss is known, and for how many losses that counts."""

CHANGE, CHANGE_OF_LATE = 0.1, 0.8
"""How much the slope over the logarithm of the epoch may change, as a standard deviation: of a DNN that is as
good as others, and of one that is far behind. It may be about to begin to learn."""


def future_log_loss(losses: Sequence[float], epoch: int, behind: float = 0.0) -> tuple[float, float]:
    """Return the logarithm of the least loss to expect up to an epoch to come, and its standard deviation.

    The curve is log loss(k) = s - a * h(k), where h rises like 1 - k**-b; a late epoch counts more than an
    early one. For each b of a few, s and a follow from Bayesian linear regression, and the answers are
    averaged by how probable they make the losses. The least of several noisy losses is below the curve. The
    slope may change on the way; the longer the way, the less is known.

    Args:
        losses: after epochs 1, 2, ..., >= 0; NaN where one is not known; one at least is.
        epoch: later than the last of them.
        behind: how much the logarithm of the loss is above that of comparable trainings, >= 0.

    Source: a mixture of parametric curves with their uncertainty, as in [DOMHAN] Sec. 3, but of one family,
        whose answer has a closed form.
    """
    epochs = np.arange(1.0, len(losses) + 1)
    is_known = np.isfinite(losses)
    logs = np.log(np.maximum(np.asarray(losses, np.float64)[is_known], np.finfo(np.float64).tiny))
    epochs = epochs[is_known]
    last, reference = float(epochs[-1]), float(logs[-1])
    weights = epochs / last / NOISE
    prior = np.diag([START_DEVIATION**-2.0, FALL_DEVIATION**-2.0])
    mean = np.array([0.0, -FALL_MEAN])
    freedom = NOISE_WEIGHT + len(logs)
    scores, means, variances, noises = [], [], [], []
    for power in POWERS:
        # 0 at the last known epoch; it changes by 1 from the first epoch to the one asked for.
        shape = (last**-power - np.append(epochs, epoch) ** -power) / (1.0 - float(epoch) ** -power)
        design = np.stack([np.ones_like(epochs), shape[:-1]], axis=1) * weights[:, np.newaxis]
        wanted = (logs - reference) * weights
        precision = prior + design.T @ design
        found = np.linalg.solve(precision, prior @ mean + design.T @ wanted)
        misfit = np.square(wanted - design @ found).sum() + (found - mean) @ prior @ (found - mean)
        noise = float(NOISE_WEIGHT + misfit) / freedom  # variance, over the one before any loss is known
        scores.append(-0.5 * float(np.linalg.slogdet(precision)[1]) - 0.5 * freedom * math.log(noise))
        at = np.array([1.0, shape[-1]])
        means.append(float(at @ found))
        variances.append(noise * float(at @ np.linalg.solve(precision, at)))
        noises.append(noise)
    shares = np.exp(np.array(scores) - max(scores))
    shares /= shares.sum()
    expected = float(shares @ np.array(means))
    variance = float(shares @ (np.array(variances) + np.square(np.array(means) - expected)))
    change = CHANGE + min(1.0, behind) * (CHANGE_OF_LATE - CHANGE)
    variance += (change * math.log(epoch / last)) ** 2
    noise = NOISE * math.sqrt(float(shares @ np.array(noises)))
    below = LEAST_OF * noise * math.sqrt(2.0 * math.log(epoch - last))
    return reference + expected - below, math.sqrt(variance)


LEAST_OF = 0.6
"""The least of n normal numbers is so many times sqrt(2 log n) deviations below their mean, for few n."""
