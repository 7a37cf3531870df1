"""A few samples stand for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.update import Table
from hpcbal.runtime.jobs.loading import LoadedJob
from hpcbal.runtime.jobs.needs import sample_job


class Numbers:
    """Samples that are larger at the end of the set."""

    facts: dict[str, Any] = {}  # noqa: RUF012 - as users write it

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def read(self, samples: np.ndarray[Any, Any]) -> dict[str, Any]:
        from hpcbal.paramserver.api.columns import Ragged

        return {
            "id": samples,
            "list": Ragged.of([np.zeros(1 + 2 * (2 * int(i) // self.num_samples)) for i in samples]),
        }


class Rows(App):
    """Each sample needs the row of its number divided by `share`; 0: all need the first row."""

    def __init__(self, source: Numbers, share: int) -> None:
        super().__init__(source)
        self.share = share

    def tables(self) -> list[Table]:
        rows = self.source.num_samples
        return [Table("dense", 3, 2), Table("sparse", rows, 4, "float32", "sparse")]

    def initial_state(self, columns: Any, rng: Any) -> dict[str, Any]:
        return {"seen": np.zeros(len(columns["id"]), np.int8)}

    def needs(self, batch: Any) -> dict[str, Any]:
        ids = batch.columns["id"]
        return {"sparse": np.unique(ids // self.share if self.share else 0 * ids)}

    def compute(self, batch: Any, parameters: Any) -> dict[str, Any]:
        raise NotImplementedError

    objective = compute

    def metrics(self, sums: Any) -> dict[str, float]:
        raise NotImplementedError


def loaded(num_samples: int, share: int) -> LoadedJob:
    app = Rows(Numbers(num_samples), share)
    return LoadedJob(app, app.source, {table.name: table for table in app.tables()})


@pytest.mark.parametrize("num_samples", [1, 7, 200, 5000])
def test_samples_are_taken_from_everywhere_and_none_is_missing(num_samples: int) -> None:
    found = sample_job(loaded(num_samples, 1), 0)
    assert 1 <= found.num_samples <= 256
    assert found.row_bytes == {"sparse": 16.0 * found.num_samples}
    assert found.row_growth == 1.0
    # The number takes 8 bytes, the state 1, an offset 8, and the list 8 in one half and 24 in the other.
    runs = min(num_samples, 16)
    if num_samples >= 200:
        assert found.sample_bytes == pytest.approx(8 + 1 + 16 + 8 * (1 + runs / found.num_samples), rel=0.05)


def test_rows_that_all_samples_share_do_not_grow() -> None:
    assert sample_job(loaded(5000, 0), 0).row_growth == 0.0


def test_rows_that_neighbours_share_grow_more_slowly_than_samples() -> None:
    assert 0.0 < sample_job(loaded(5000, 50), 0).row_growth < 0.5
