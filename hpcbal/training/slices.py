"""Cut the samples of one rank's share into slices that are computed one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcbal.training.backend import Batch
from hpcbal.training.weights import Array


@dataclass(frozen=True, slots=True)
class _Slice:
    """Neighbours in a batch; see `hpcbal.training.backend.Batch`."""

    ids: Array
    x: Array | list[Array]
    y: Array
    work: float
    padding_limit: float


def slices_of(batch: Batch, number: int) -> Iterator[Batch]:
    """Yield the samples of a batch in order, in slices whose sizes differ by at most one.

    What the slices add to a step are the parts of a sum, as those of ranks are.

    Args:
        batch: at least one sample.
        number: of slices, >= 1; no slice is empty, so a batch of fewer samples has fewer slices.
    """
    size = len(batch.ids)
    number = min(number, size)
    if number == 1:
        yield batch
        return
    for index in range(number):
        start, stop = index * size // number, (index + 1) * size // number
        yield _Slice(
            batch.ids[start:stop],
            batch.x[start:stop],
            batch.y[start:stop],
            batch.work * (stop - start) / size,
            batch.padding_limit,
        )
