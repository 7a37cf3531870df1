"""What a dataset of a parameter-server job is to the engine: columns of samples, read by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hpcbal.paramserver.contract.columns import Columns, IntArray

Fact = int | float | str


class SampleSource(Protocol):
    """What the function under `data.dataset` returns, the same in every process.

    Attributes:
        num_samples: >= 1; ids are 0..num_samples-1.
        facts: what apps need to size their tables: `num_features`, `num_classes`, `num_words`, ...
    """

    @property
    def num_samples(self) -> int: ...

    @property
    def facts(self) -> Mapping[str, Fact]: ...

    def read(self, samples: IntArray) -> Columns:
        """Read samples; one entry per array, axis 0 = samples in the given order.

        Args:
            samples: ids, int64; the engine asks for runs of neighbours.

        Returns: at least one column. All processes get the same names, types and trailing shapes.
        """
