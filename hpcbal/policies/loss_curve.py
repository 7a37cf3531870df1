"""Extrapolate the loss curve of a training to its target ([PS] Sec. 4.5 asks for it)."""

from __future__ import annotations

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
