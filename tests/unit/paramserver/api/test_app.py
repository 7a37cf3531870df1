"""The declarations, requests and pushes of an app are checked; pushes are applied in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.events.history import OTHER_FIELDS
from hpcbal.paramserver.api.app import App, apply_update, checked_metrics, has_default_update, tables_of
from hpcbal.paramserver.api.update import AppError, Table, Update, checked_needs, checked_updates

TABLES = {
    "weights": Table("weights", 3, 2),
    "counts": Table("counts", 5, 1, dtype="int64", access="sparse"),
}


class Source:
    num_samples = 1
    facts: Mapping[str, int] = {}

    def read(self, samples: NDArray[np.int64]) -> dict[str, Any]:
        return {"x": samples}


class Summing(App):
    def tables(self) -> list[Table]:
        return list(TABLES.values())

    def compute(self, batch: Any, parameters: Any) -> dict[str, Any]:
        return {}

    def objective(self, batch: Any, parameters: Any) -> dict[str, float]:
        return {}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {}


class Largest(Summing):
    def update(self, table: str, values: NDArray[Any], deltas: NDArray[Any]) -> None:
        np.maximum(values, deltas, out=values)


def test_a_table_knows_its_bytes() -> None:
    assert (TABLES["weights"].row_bytes, TABLES["weights"].num_bytes) == (16, 48)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_rows": 0}, "table 't': got 0 rows of 1 numbers, allowed: at least 1 of each"),
        ({"dtype": "complex64"}, "dtype: got 'complex64', allowed: float64, float32, int64, int32"),
        ({"access": "scattered"}, "access: got 'scattered', allowed: dense, sparse"),
    ],
)
def test_a_table_out_of_range_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Table(**{"name": "t", "num_rows": 1, "num_columns": 1, **wrong})
    assert message in str(raised.value)


def test_an_app_starts_with_zeros_and_rejects_arguments_that_it_does_not_have() -> None:
    app = Summing(Source())
    zeros = app.initial("counts", np.array([1, 3]), np.random.default_rng(0))
    assert (zeros.shape, zeros.dtype, zeros.any()) == ((2, 1), np.int64, np.False_)
    assert tables_of(app) == TABLES
    with pytest.raises(InputError, match=r"args: got 'rank', which Summing does not have"):
        Summing(Source(), rank=3)


def test_names_of_tables_are_unique() -> None:
    class Twice(Summing):
        def tables(self) -> list[Table]:
            return [Table("a", 1, 1), Table("a", 2, 2)]

    with pytest.raises(InputError, match=r"Twice\.tables: got \['a', 'a'\]"):
        tables_of(Twice(Source()))


@pytest.mark.parametrize("app", [Summing(Source()), Largest(Source())])
def test_a_push_changes_the_rows_that_it_names(app: App) -> None:
    block = np.array([[1.0], [2.0], [3.0]])
    apply_update(app, "weights", block, np.array([0, 2]), np.array([[5.0], [1.0]]))
    apply_update(app, "weights", block, None, np.array([[0.0], [0.0], [1.0]]))
    adds = has_default_update(app)
    assert block.tolist() == ([[6.0], [2.0], [5.0]] if adds else [[5.0], [2.0], [3.0]])


def test_plain_arrays_stand_for_all_rows_or_for_those_that_were_pulled() -> None:
    needs = checked_needs({"counts": np.array([1, 4], np.int32)}, TABLES)
    assert needs["counts"].dtype == np.int64
    updates = checked_updates(
        {"weights": np.ones((3, 2), np.float32), "counts": np.array([[1], [2]], np.int32)}, TABLES, needs
    )
    assert updates["weights"].rows is None
    assert updates["weights"].deltas.dtype == np.float64
    assert updates["counts"].rows is needs["counts"]
    assert updates["counts"].deltas.dtype == np.int64
    some = checked_updates({"weights": Update(np.ones((1, 2)), np.array([2]))}, TABLES, needs)
    assert some["weights"].rows is not None
    assert checked_updates({}, TABLES, needs) == {}
    assert checked_needs({}, TABLES)["counts"].tolist() == []


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"weights": [0]}, "needs: got table 'weights', allowed: the sparse tables (counts)"),
        ({"counts": [0, 5]}, "needs of table 'counts': got row 5, allowed: 0 to 4"),
        ({"counts": [-1, 2]}, "needs of table 'counts': got row -1, allowed: 0 to 4"),
        ({"counts": [2, 2]}, "rows must be ascending, each once"),
        ({"counts": [0.5]}, "got rows of shape (1,) and type float64, allowed: a list of integers"),
    ],
)
def test_wrong_needs_are_errors_that_say_what_is_allowed(needs: dict[str, Any], message: str) -> None:
    with pytest.raises(AppError) as raised:
        checked_needs({name: np.array(rows) for name, rows in needs.items()}, TABLES)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({"bias": np.zeros((3, 2))}, "updates: got table 'bias', allowed: weights, counts"),
        ({"weights": np.zeros((2, 2))}, "got deltas of shape (2, 2), expected (3, 2)"),
        ({"counts": np.zeros((1, 1))}, "got deltas of type float64, allowed: what fits the table's int64"),
        ({"counts": Update(np.zeros((1, 1), int), np.array([9]))}, "got row 9, allowed: 0 to 4"),
    ],
)
def test_wrong_updates_are_errors_that_say_what_is_allowed(updates: dict[str, Any], message: str) -> None:
    with pytest.raises(AppError) as raised:
        checked_updates(updates, TABLES, checked_needs({"counts": np.array([3])}, TABLES))
    assert message in str(raised.value)


def test_metrics_become_plain_numbers() -> None:
    found = checked_metrics({"loss": np.float32(0.5), "val_rmse": 2})
    assert found == {"loss": 0.5, "val_rmse": 2.0}
    assert list(map(type, found.values())) == [float, float]


@pytest.mark.parametrize("name", sorted(OTHER_FIELDS))
def test_metrics_with_names_of_other_fields_are_refused_with_the_list(name: str) -> None:
    says = f"^metrics: got '{name}', which records use for something else, allowed: any name but epoch, "
    with pytest.raises(AppError, match=says) as caught:
        checked_metrics({"loss": 1.0, name: 2.0})
    assert set(str(caught.value).rpartition("any name but ")[2].split(", ")) == OTHER_FIELDS
