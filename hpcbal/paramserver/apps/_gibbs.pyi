"""Collapsed Gibbs sampling of topics (C, see _gibbs.c)."""

import numpy as np
from numpy.typing import NDArray

def sample(
    rows: NDArray[np.int32],
    starts: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    topics: NDArray[np.int32],
    counts: NDArray[np.int32],
    totals: NDArray[np.int64],
    listed: NDArray[np.int32],
    num_listed: NDArray[np.int32],
    deltas: NDArray[np.int32],
    total_deltas: NDArray[np.int64],
    alpha: float,
    beta: float,
    beta_sum: float,
    /,
) -> None:
    """Draw a new topic for every token of some documents, one after another.

    Args:
        rows: the row of each token's word, shape (num_tokens,).
        starts: document d has the tokens starts[d] to starts[d + 1] - 1, shape (num_documents + 1,).
        uniforms: a number of [0, 1) for each token.
        topics: of the tokens. Updated.
        counts: tokens of each word and topic, shape (num_rows, num_topics). Changed, and changed back.
        totals: tokens of each topic, shape (num_topics,). Changed, and changed back.
        listed: topics of each row, shape (num_rows, num_topics). Made here.
        num_listed: how many are listed; -1 at first, shape (num_rows,). Updated.
        deltas, total_deltas: what the new topics change in counts and totals. Added to.
        alpha, beta, beta_sum: see `gibbs.Prior`.

    Raises:
        ValueError: the arrays do not fit together.
        BufferError: an array is not C-contiguous, or is read-only.
    """
