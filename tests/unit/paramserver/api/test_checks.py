"""The returns of datasets and apps are checked before the engine relies on them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hpcbal.paramserver.api.app import checked_metrics
from hpcbal.paramserver.api.batch import DataBlock, gather_batch, scatter_state
from hpcbal.paramserver.api.checks import checked_columns, checked_initial, checked_terms
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.api.update import AppError, Table, checked_needs, checked_updates

TABLE = Table("w", 4, 2)


def test_columns_with_the_right_number_of_samples_pass() -> None:
    columns = {"x": np.zeros((3, 2)), "words": Ragged.of([np.ones(1), np.ones(0), np.ones(2)])}
    columns |= {"text": np.array(["a", "bc", ""]), "time": np.zeros(3, "M8[s]"), "raw": np.zeros(3, "S4")}
    assert checked_columns("source.read", columns, 3, least=1) is columns
    assert checked_columns("initial_state", {}, 3) == {}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "source.read: got a NoneType, allowed: a mapping of names to at least one array"),
        ({}, "source.read: got 0 columns, allowed"),
        ({"x": np.array(["a", None, 1], object)}, "column 'x': got values of type object, allowed: numbers"),
        ({"x": np.zeros(3, [("a", "f4"), ("b", "i4")])}, "what has several fields goes into a column each"),
        ({"x": Ragged.of([np.array([None])] * 3)}, "got values of type object"),
        ({"x": np.zeros(2)}, "column 'x': got 2 samples, expected 3"),
        ({"x": [1, 2, 3]}, "column 'x': got a list, allowed: an array or a Ragged"),
        ({"x": np.float64(1.0)}, "column 'x': got a float64, allowed"),
        ({"x": Ragged(np.zeros(4), np.array([0, 2, 1, 4]))}, "got offsets that do not cut 4 values"),
        ({"x": Ragged(np.zeros(4), np.array([0, 1, 2, 3]))}, "got offsets that do not cut 4 values"),
    ],
)
def test_other_columns_are_refused(columns, message) -> None:
    with pytest.raises(AppError, match=re.escape(message)):
        checked_columns("source.read", columns, 3, least=1)


def block_with(state: dict) -> DataBlock:
    return DataBlock(0, 0, {"x": np.zeros(5)}, state)


def test_a_turn_may_change_the_values_of_a_state() -> None:
    block = block_with({"z": np.zeros((5, 2)), "t": Ragged.of([np.zeros(1)] * 5)})
    slices = [(block, 0, np.array([1, 3]))]
    batch = gather_batch(slices, seed=0, epoch=0)
    batch.state["z"] = np.ones((2, 2))
    batch.state["t"].values[:] = 7
    scatter_state(batch, slices)
    assert block.state["z"].sum() == 4
    assert block.state["t"].values.tolist() == [0, 7, 0, 7, 0]


@pytest.mark.parametrize(
    "changed",
    [
        {"z": np.ones((3, 2))},
        {"z": np.ones((2, 3))},
        {"z": Ragged.of([np.ones(1), np.ones(1)])},
        {"z": None},
        {"z": np.ones((2, 2)), "new": np.ones(2)},
        {},
    ],
    ids=["samples", "columns", "ragged", "none", "new", "missing"],
)
def test_a_turn_must_not_change_its_form(changed) -> None:
    slices = [(block_with({"z": np.zeros((5, 2))}), 0, np.array([1, 3]))]
    batch = gather_batch(slices, seed=0, epoch=0)
    batch.state.clear()
    batch.state.update(changed)
    with pytest.raises(AppError, match="compute: " if changed else "left the states none, expected z"):
        scatter_state(batch, slices)


def test_first_values_must_have_the_shape_and_type_of_the_table() -> None:
    assert checked_initial(TABLE, np.ones((3, 2), np.float32), 3).shape == (3, 2)
    with pytest.raises(AppError, match=re.escape("got an array of shape (1, 1), expected (3, 2)")):
        checked_initial(TABLE, np.ones((1, 1)), 3)
    with pytest.raises(
        AppError, match="got values of type complex128, allowed: what fits the table's float64"
    ):
        checked_initial(TABLE, np.ones((3, 2), complex), 3)
    with pytest.raises(AppError, match="got NaN"):
        checked_initial(TABLE, np.full((3, 2), np.nan, np.float32), 3)


def test_terms_and_metrics_are_numbers_by_name() -> None:
    assert checked_terms("objective", {"loss": np.float32(0.5), "n": 3}) == {"loss": 0.5, "n": 3.0}
    for terms in (None, [1.0], {"loss": "x"}, {"loss": None}):
        with pytest.raises(AppError, match="objective: got"):
            checked_terms("objective", terms)
    with pytest.raises(AppError, match="metrics: got none, allowed: at least one"):
        checked_metrics({})


def test_needs_and_updates_are_mappings() -> None:
    with pytest.raises(AppError, match="needs: got a NoneType, allowed: a mapping"):
        checked_needs(None, {"w": TABLE})  # type: ignore[arg-type]
    with pytest.raises(AppError, match="updates: got a ndarray, allowed: a mapping"):
        checked_updates(np.ones((4, 2)), {"w": TABLE}, {})  # type: ignore[arg-type]
    with pytest.raises(AppError, match="updates: got a NoneType, allowed: a mapping of tables to deltas"):
        checked_updates(None, {"w": TABLE}, {})  # type: ignore[arg-type]
    assert checked_updates({}, {"w": TABLE}, {}) == {}
