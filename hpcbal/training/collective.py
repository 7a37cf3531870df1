"""Sum gradients over a trainer group; one interface, several ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcbal.training.arrays import Array


class GradientCollective(Protocol):
    """Sums over the ranks of one trainer group.

    Attributes:
        size: ranks in the group, >= 1.
        rank: this one, 0..size-1; 0 is the master.
        meets: whether the ranks meet before they sum, so that they can `consult`.
    """

    size: int
    rank: int
    meets: bool

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """One fused all-reduce; returns when all ranks of the group have called it.

        Args:
            tensors: of one floating-point type, with equal shapes on all ranks, or none at all.
            status: shape (k,), k >= 1; rides in the same operation, in the type of the tensors.

        Returns:
            The sums of the tensors, valid until the next call, and of the status, float64 of shape (k,).
            Both are equal on all ranks.
        """

    def exchange(self, numbers: Array) -> None:
        """Sum a short vector in the middle of a step, by MPI; returns when all ranks have called it.

        Also from another thread than the one that calls `sum`, but never while that is in it.

        Args:
            numbers: float64, contiguous, equally long on all ranks; the sums take their place.
        """

    def tell(self, numbers: Array) -> None:
        """Send a short vector from the master to all ranks, by MPI; returns when this rank has it.

        Args:
            numbers: as for `exchange`; the master's take the place of the others'.
        """

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        """Meet before `sum`: the master gets the numbers of all ranks, and its answer goes to all.

        The ranks meet in it as they otherwise do in the `sum` that must follow, which then comes at once: a
        question that is answered costs one wait for the slowest rank, not two. Only where it `meets`: ranks
        of Horovod negotiate while they wait, and would begin with that too late.

        Args:
            numbers: of this rank, float64, shape (k,), contiguous, k equal on all ranks.
            answer: the master's, of the numbers by rank, shape (size, k); gives float64, shape (length,). It
                must not raise, since the others wait for it.
            length: numbers of the answer, equal on all ranks.

        Returns: the answer, equal on all ranks.
        """

    def close(self) -> None:
        """Free what the collective holds; collective over the group."""


class LocalCollective(GradientCollective):
    """The group of one rank: nothing to sum."""

    size = 1
    rank = 0
    meets = True

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """The same tensors, not copied."""
        return tensors, status.astype(np.float64)

    def exchange(self, numbers: Array) -> None:
        """The numbers are the sums."""

    def tell(self, numbers: Array) -> None:
        """Nobody else is there."""

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        return answer(numbers[np.newaxis])

    def close(self) -> None:
        """Nothing to free."""
