"""Divide the predictions of all DNNs for all samples over the ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """The predictions of one DNN for neighbouring samples.

    Attributes:
        member: index of the DNN.
        start, stop: samples start..stop-1.
    """

    member: int
    start: int
    stop: int


def pieces_of_rank(num_members: int, num_samples: int, rank: int, num_ranks: int) -> tuple[Piece, ...]:
    """The part of one rank: every rank gets equally many predictions, and as few DNNs as possible.

    The samples of the first DNN, then those of the second, and so on are laid on one line, which is cut into
    equal parts. So a rank needs at most two DNNs more than `num_members / num_ranks`, and with fewer DNNs
    than ranks, several ranks share one.

    Args:
        num_members, num_samples: >= 0.
        rank: 0..num_ranks-1.
    """
    total = num_members * num_samples
    first, end = total * rank // num_ranks, total * (rank + 1) // num_ranks
    pieces = []
    while first < end:
        member, start = divmod(first, num_samples)
        stop = min(num_samples, start + end - first)
        pieces.append(Piece(member, start, stop))
        first += stop - start
    return tuple(pieces)
