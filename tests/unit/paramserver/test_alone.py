"""Training in one process: every sample once an epoch, and the same sums however a step is split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hpcbal.errors import InputError
from hpcbal.paramserver.alone import Alone, train_alone
from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import AppError, Table, Update
from hpcbal.paramserver.apps.sources import ArraySource


class Counting(App):
    """Counts how often each sample was taken, at the servers and in its state."""

    def tables(self) -> list[Table]:
        count = self.source.num_samples
        return [Table("seen", count, 1, "int64", "sparse"), Table("steps", 1, 2)]

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> Any:
        return rng.random((1, 2)) if table == "steps" else np.zeros((len(rows), 1), np.int64)

    def initial_state(self, columns: Any, rng: np.random.Generator) -> Any:
        return {"turns": np.zeros(len(columns["x"]), np.int64)}

    def initial_updates(self, batch: Batch) -> Any:
        return {"seen": Update(np.full((batch.num_samples, 1), 100), batch.samples)}

    def needs(self, batch: Batch) -> Any:
        return {"seen": np.sort(batch.samples)}

    def compute(self, batch: Batch, parameters: Any) -> Any:
        batch.array("turns")[:] += 1
        with pytest.raises(ValueError, match="read-only"):
            parameters["steps"][:] = 0.0
        assert (parameters["seen"] == 100 + batch.epoch).all()
        return {"seen": np.ones((batch.num_samples, 1), int), "steps": np.array([[1.0, batch.num_samples]])}

    def objective(self, batch: Batch, parameters: Any) -> dict[str, float]:
        assert len(parameters["seen"]) == batch.num_samples
        return {"turns": batch.array("turns").sum(), "x": batch.array("x").sum()}

    def parameter_objective(self, table: str, values: Any) -> dict[str, float]:
        return {table: values.sum()}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return sums


def source_of(count: int) -> ArraySource:
    return ArraySource({"x": np.arange(count)}, {})


def test_every_sample_counts_once_an_epoch() -> None:
    blocks = lambda table: np.array_split(np.arange(table.num_rows), min(4, table.num_rows))  # noqa: E731
    alone, metrics = train_alone(
        Counting(source_of(23)), 3, mini_batch=4, seed=5, num_data_blocks=5, parameter_blocks=blocks
    )
    assert alone.values["seen"].tolist() == [[103]] * 23
    assert [each["turns"] for each in metrics] == [23, 46, 69]
    assert metrics[0]["x"] == sum(range(23))
    assert metrics[-1]["seen"] == 103 * 23
    first = Alone(Counting(source_of(23)), mini_batch=4, seed=5, num_data_blocks=5).values["steps"]
    assert alone.values["steps"] - first == pytest.approx(np.array([[18.0, 69.0]]))  # 6 steps an epoch


def test_a_step_of_no_samples_is_left_out() -> None:
    alone, _ = train_alone(Counting(source_of(7)), 1, mini_batch=1, num_data_blocks=7)
    first = Alone(Counting(source_of(7)), mini_batch=1, num_data_blocks=7).values["steps"]
    steps, samples = (alone.values["steps"] - first)[0]
    assert round(samples) == 7
    assert round(steps) <= 7


def test_wrong_numbers_and_columns_are_errors() -> None:
    with pytest.raises(InputError, match="mini_batch: got 0, allowed: >= 1"):
        Alone(Counting(source_of(3)), mini_batch=0)
    with pytest.raises(InputError, match="got 4 blocks of 3 samples"):
        Alone(Counting(source_of(3)), mini_batch=1, num_data_blocks=4)
    with pytest.raises(InputError, match="got no samples"):
        source_of(0)

    class Wrong(Counting):
        def compute(self, batch: Batch, parameters: Any) -> Any:
            return {"steps": batch.array("labels")}

    with pytest.raises(AppError, match=r"no column 'labels'; its columns and the app's state are: x, turns"):
        train_alone(Wrong(source_of(3)), 1, mini_batch=1)
