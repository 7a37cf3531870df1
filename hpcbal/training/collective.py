"""Sum gradients over a trainer group: one interface, several implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcbal.training.weights import Array


class GradientCollective(Protocol):
    """Sums over the ranks of one trainer group.

    Attributes:
        size: ranks in the group, >= 1.
        rank: rank of this process, 0..size-1; 0 is the master.
        meets: whether the ranks meet before they sum, so that they can `consult`.
    """

    size: int
    rank: int
    meets: bool

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """One fused all-reduce; returns when all ranks of the group have called it.

        Args:
            tensors: of one floating-point type, with equal shapes on all ranks; may be empty.
            status: shape (k,), k >= 1; summed in the same operation, in the type of the tensors.

        Returns:
            The sums of the tensors, valid until the next call, and of the status, float64 of shape (k,). Both
            are equal on all ranks.
        """

    def exchange(self, numbers: Array) -> None:
        """Sum a short vector in the middle of a step, by MPI; returns when all ranks have called it.

        May be called from another thread than `sum`, but never during `sum`.

        Args:
            numbers: float64, contiguous, equally long on all ranks; replaced by the sums.
        """

    def tell(self, numbers: Array) -> None:
        """Send a short vector from the master to all ranks, by MPI; returns when this rank has it.

        Args:
            numbers: as for `exchange`; on the other ranks replaced by the master's.
        """

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        """Meet before `sum`: the master gets the numbers of all ranks, and its answer goes to all ranks.

        The ranks wait for each other here instead of in the following `sum`, which is then fast: a question
        and its answer cost one wait for the slowest rank, not two. Allowed only if the collective `meets`:
        Horovod's ranks negotiate while they wait, and would start that too late.

        Args:
            numbers: numbers of this rank, float64, shape (k,), contiguous, k equal on all ranks.
            answer: called on the master with the numbers by rank, shape (size, k); returns float64, shape
                (length,). It must not raise, because the other ranks wait for it.
            length: length of the answer, equal on all ranks.

        Returns: the answer, equal on all ranks.
        """

    def meet(self) -> None:
        """Wait for all ranks of the group, without burning a core, unless they have met in `consult`."""

    def close(self) -> None:
        """Free what the collective holds; collective over the group."""


class LocalCollective(GradientCollective):
    """The collective of a group of one rank, with nothing to sum."""

    size = 1
    rank = 0
    meets = True

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """Return the same tensors, without a copy."""
        return tensors, status.astype(np.float64)

    def exchange(self, numbers: Array) -> None:
        """Do nothing: the numbers are the sums."""

    def tell(self, numbers: Array) -> None:
        """Do nothing: there are no other ranks."""

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        return answer(numbers[np.newaxis])

    def meet(self) -> None:
        """Do nothing: there are no other ranks."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
