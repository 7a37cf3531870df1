"""Order the samples of a pass so that the samples of a step are of similar size."""

from __future__ import annotations

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.time_curves import FloatArray, IntArray
from hpcbal.policies.samples.task import checked_sizes

_STREAM = 0x51E5
"""Separates this random stream from others with the same seed."""


def order_in_windows(
    sizes: FloatArray, batch_size: int, num_batches: int, seed: int, pass_index: int
) -> IntArray:
    """Sort each window of a random order by size, cut it into batches, and shuffle these.

    Every sample occurs exactly once. With a window of one batch the batches stay those of the random order.
    With 50 this is grouping by length; with 2 to 8 it is the lookahead of `within-batch`: long
    samples meet in one step, where a single one would be longer than a fair share of the step.

    Args:
        sizes: in the random order of the pass, shape (num_samples,).
        batch_size: samples of a step, >= 1.
        num_batches: batches of a window, >= 1. A last batch that is not full stays last.
        seed: of the run, >= 0.
        pass_index: >= 0.

    Returns: places in the random order, in the new order, int64, shape (num_samples,).
    Raises: PolicyError: an argument is out of range.
    """
    if batch_size < 1 or num_batches < 1:
        raise PolicyError(f"window: got {num_batches} batches of {batch_size}, allowed: 1 or more of each")
    sizes = checked_sizes(sizes)
    if num_batches == 1:
        return np.arange(len(sizes))
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, pass_index, _STREAM])))
    num_full = len(sizes) // batch_size
    window = num_batches * batch_size
    parts = [np.zeros(0, np.int64)]
    for start in range(0, num_full * batch_size, window):
        stop = min(start + window, num_full * batch_size)
        by_size = start + np.argsort(-sizes[start:stop], kind="stable")
        parts.append(random.permutation(by_size.reshape(-1, batch_size)).ravel())
    return np.concatenate([*parts, np.arange(num_full * batch_size, len(sizes))])
