"""Sums over a trainer group within a step, where all ranks meet, even those without samples or with errors.

A synchronised layer cannot continue before it knows the other ranks' sums. So a rank that fails while others
wait in such a sum must still meet them there, although it may not know in which one they are.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from hpcbal.training.backend import GradientCollective
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.weights import Array

FAILED, COMPUTING, CLOSING, PLACE, PLACE_SQUARED = range(5)
"""Fields before the numbers; all ranks learn the sum of each over the ranks."""
HEADER_LENGTH = PLACE_SQUARED + 1


class StepExchange:
    """The meetings of one rank with the others of its group, step after step.

    Every meeting is one all-reduce of the same length, whatever its purpose: a layer's numbers, a failure, or
    the end of the step. So each rank can take part without knowing where the others are.

    - A rank that computes meets the others once per `sum`, and once more at its `end`.
    - A rank without samples would add zeros to everything: it meets the others with zeros until they end.
    - A rank that fails meets them once with a failure flag; then all ranks leave the step. The step's own
      all-reduce, which follows on every rank, reports the cause.

    The meaning of a meeting follows from its sums alone, so all ranks reach the same conclusion.

    Args:
        length: most numbers of one `sum`, >= 1, equal on all ranks.
        may_overflow: whether gradients that are not finite are no error, because the loss is scaled.

    Attributes:
        is_open: whether a step is running in which this rank has to meet the others.
        waited_s: seconds that this rank has spent in the meetings of the current or last step.
    """

    def __init__(self, length: int, *, may_overflow: bool = False) -> None:
        self._may_overflow = may_overflow
        self.is_open = False
        self.waited_s = 0.0
        self._numbers = np.zeros(HEADER_LENGTH + length)
        self._collective: GradientCollective | None = None
        self._error: Exception | None = None
        # The library's threads call `sum`, the rank's own thread calls the rest: one meeting at a time.
        self._lock = threading.Lock()

    def begin(self, collective: GradientCollective) -> None:
        """Start a step of the group; all ranks call it, or none."""
        self._collective = collective
        self.is_open = True
        self.waited_s = 0.0
        self._error = None

    def sum(self, numbers: Array, place: int, is_gradient: bool = False) -> Array:
        """Sum over the ranks of the group; called in the same order on all ranks that have samples.

        Once the step has failed, no rank meets any more, and the numbers are returned unchanged: the rest of
        the step is computed, but discarded.

        Args:
            numbers: float64, shape (n,), n <= `length`; the numbers of this rank.
            place: place of this sum in the model, 1 or more; the ranks compare it.
            is_gradient: whether they are computed on the way back. If they may overflow and have, the other
                ranks get zeros, and this rank gets its own numbers, so that it knows.
        """
        with self._lock:
            if not self.is_open:
                return numbers
            if not np.isfinite(numbers).all():
                if is_gradient and self._may_overflow:  # the step will be skipped, on all ranks
                    self._meet(np.zeros_like(numbers), place)
                    return numbers
                # The origin of the NaN is known here. One sum later, every rank would have it.
                self._error = NonFiniteError("the sums of a synchronised layer are not finite")
                self._meet(failed=True)
                return numbers
            return self._meet(numbers, place)[: numbers.size]

    def follow(self) -> None:
        """Meet the others, without own samples, until they have ended or failed."""
        with self._lock:
            while self.is_open:
                self._meet()

    def end(self, error: Exception | None = None) -> Exception | None:
        """End this rank's part of a step, computed or failed with `error`; call it once in each step.

        Returns:
            What went wrong on this rank, if anything; consequences of another rank's failure are left out.
        """
        with self._lock:
            if not self.is_open:
                return self._error
            self._meet(failed=error is not None, closing=True)
            self.is_open = False
            return error if error is not None else self._error

    def _meet(
        self, numbers: Array | None = None, place: int = 0, *, failed: bool = False, closing: bool = False
    ) -> Array:
        """Do one all-reduce; without numbers and not closing, like a rank without samples."""
        assert self._collective is not None, "call begin first"
        computes = (numbers is not None or closing) and not failed
        header, own = self._numbers[:HEADER_LENGTH], self._numbers[HEADER_LENGTH:]
        header[:] = failed, computes, computes and closing, place, place * place
        own[:] = 0.0
        if numbers is not None:
            own[: numbers.size] = numbers
        began = time.monotonic()
        self._collective.exchange(self._numbers)
        self.waited_s += time.monotonic() - began
        self._conclude(header)
        return own.copy()

    def _conclude(self, header: Array) -> None:
        num_computing, place = header[COMPUTING], header[PLACE]
        if header[FAILED] > 0.0 or not num_computing or header[CLOSING] == num_computing:
            self.is_open = False
        elif header[CLOSING] > 0.0 or num_computing * header[PLACE_SQUARED] != place * place:
            self.is_open = False
            self._error = RuntimeError(
                f"the {num_computing:.0f} ranks with samples are at different layers of the model, and "
                f"{header[CLOSING]:.0f} of them at its end; a model with synchronised layers must be the "
                "same on all ranks and in every step"
            )
