"""A parameter-server job for measuring transfers: samples are empty, updates are zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Columns, IntArray
from hpcbal.paramserver.api.update import Parameters, Table, Updates


class Empty:
    """Samples without content.

    Args:
        num_samples: how many.
        sample_bytes: size of each, >= 1.
    """

    def __init__(self, num_samples: int, sample_bytes: int = 1) -> None:
        self.num_samples = num_samples
        self.facts: dict[str, Any] = {}
        self._sample_bytes = sample_bytes

    def read(self, samples: IntArray) -> Columns:
        """Their only column."""
        return {"empty": np.zeros((len(samples), self._sample_bytes), np.int8)}


class Sized(App):
    """A dense table that every turn pulls and pushes whole, in float32.

    Args:
        source: the samples.
        num_rows, num_columns: of the table.
    """

    def __init__(self, source: SampleSource, num_rows: int, num_columns: int) -> None:
        super().__init__(source)
        self._table = Table("model", num_rows, num_columns, "float32")
        self._deltas = np.zeros((num_rows, num_columns), np.float32)

    def tables(self) -> list[Table]:
        """The table."""
        return [self._table]

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        """Zeros for all rows."""
        return {"model": self._deltas}

    def objective(self, batch: Batch, parameters: Parameters) -> dict[str, float]:
        """Zero."""
        return {"nothing": 0.0}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Zero."""
        return {"nothing": sums["nothing"]}
