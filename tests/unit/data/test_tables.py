"""Tables and columns of other libraries are read by place and by row, whatever their index says."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas
import pytest
from numpy.typing import NDArray

from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec, map_style
from hpcbal.data.foreign import by_place, is_table
from hpcbal.errors import DataError

VALUES = np.random.default_rng(0).random((40, 3), np.float32)
CLASSES = np.arange(40) % 3


def shuffled() -> Any:
    """Rows as `sample(frac=1)` leaves them: their index is no longer their place."""
    frame = pandas.DataFrame(VALUES, columns=["age", "pulse", "height"])
    return frame.assign(risk=CLASSES, score=VALUES[:, 0] * 2).sample(frac=1.0, random_state=1)


class Arrow:
    """As much of `pyarrow.Table` as hpcbal uses; a number is the place of a column there."""

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        self._columns, self.column_names = columns, list(columns)

    @property
    def columns(self) -> list[NDArray[Any]]:
        return list(self._columns.values())

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self._columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, place: int) -> NDArray[Any]:
        return self.columns[place]

    def column(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def to_pandas(self) -> Any:
        raise AssertionError("not needed")


def test_labels_in_a_series_belong_to_the_rows_in_their_order() -> None:
    frame = shuffled()
    samples = frame[["age", "pulse", "height"]].to_numpy()
    values = map_style((samples, frame["score"]))
    assert (values.label_spec, len(values)) == (LabelSpec((), "float32"), 40)
    for number in range(40):
        sample, label = values.read(number)
        assert (sample == samples[number]).all()  # type: ignore[comparison-overlap]
        assert label == samples[number, 0] * 2
    classes = map_style((samples, frame["risk"]))
    assert (classes.num_classes, classes.label_spec) == (3, LabelSpec())
    assert classes.labels is not None
    assert classes.labels.tolist() == frame["risk"].tolist() == [int(classes.read(n)[1]) for n in range(40)]


@pytest.mark.parametrize("made", [shuffled, lambda: shuffled().reset_index(drop=True)])
def test_a_frame_is_read_by_row(made: Any) -> None:
    frame = made()
    samples = frame[["age", "pulse", "height"]]
    for labels in (frame["risk"], frame[["risk"]], frame["risk"].tolist(), frame["risk"].astype("Int64")):
        dataset = map_style((samples, labels))
        assert (dataset.sample_spec, dataset.num_classes) == (SampleSpec.of((3,), "float32"), 3)
        np.testing.assert_array_equal(dataset.read(7)[0], samples.to_numpy()[7])
        assert dataset.read(7)[1] == frame["risk"].iloc[7]
    by_number = samples.set_axis([0, 1, 2], axis="columns")  # so a number is the name of a column, too
    np.testing.assert_array_equal(map_style((by_number, frame["risk"])).read(2)[0], samples.to_numpy()[2])
    square = samples.iloc[:3]
    np.testing.assert_array_equal(map_style((square, CLASSES[:3])).read(1)[0], square.to_numpy()[1])
    both = map_style((samples, frame[["score", "age"]]))
    np.testing.assert_array_equal(both.read(5)[1], frame[["score", "age"]].to_numpy()[5])


def test_columns_of_different_types_are_stacked_like_those_of_items() -> None:
    frame = shuffled()
    mixed = by_place(frame[["risk", "age"]])
    assert (mixed.dtype, mixed.shape) == (np.float32, (40, 2))
    for chosen in (frame, Arrow({name: frame[name].to_numpy() for name in frame})):
        dataset = map_style(chosen, sample=["risk", "age"], label="score")
        assert dataset.sample_spec == SampleSpec.of((2,), "float32")
        np.testing.assert_array_equal(dataset.read(9)[0], mixed[9])
        assert dataset.read(9)[1] == frame["score"].iloc[9]
        assert dataset.describe(9) == "Table[9]"
    classes = map_style(frame, sample=["age"], label="risk")
    assert classes.labels is not None
    assert classes.labels.tolist() == frame["risk"].tolist()
    arrow = Arrow({"age": VALUES[:, 0], "pulse": VALUES[:, 1]})
    np.testing.assert_array_equal(map_style((arrow, CLASSES)).read(3)[0], VALUES[3, :2])


def test_missing_labels_in_a_series_are_shown_before_they_break_samples() -> None:
    labels = pandas.Series(CLASSES.astype(float)).where(np.arange(40) > 1)
    dataset = map_style((VALUES, labels))
    assert dataset.label_spec == LabelSpec((), "float64")
    assert dataset.remarks == (
        "2 of 40 labels are missing (NaN), the first that of item 0, and count as broken; classes are whole "
        "numbers, so leave out these items",
    )
    assert map_style((VALUES, labels.fillna(0.0))).remarks == ()


def test_what_a_dataset_declares_may_be_a_series() -> None:
    """Its index is that of a table whose rows were shuffled."""
    index = shuffled().index

    class Declared:
        num_classes = 3
        sizes = pandas.Series(VALUES[:, 0] + 1, index=index)
        sample_weights = pandas.Series(VALUES[:, 1], index=index)
        validation_ids = pandas.Series([7, 3], index=[3, 7])
        targets = pandas.Series(CLASSES, index=index)
        classes = pandas.Index(["a", "b", "c"])

        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> Any:
            return VALUES[number], CLASSES[number]

    dataset = map_style(Declared())
    assert dataset.labels is not None
    assert (dataset.labels.tolist(), dataset.class_names) == (CLASSES.tolist(), ("a", "b", "c"))
    source = PreprocessedSamples(dataset, (), seed=1, validation_fraction=0.2)
    assert source.validation_ids.tolist() == [3, 7]
    np.testing.assert_allclose(source.sizes, VALUES[:, 0] + 1)
    np.testing.assert_allclose(source.sample_weights, VALUES[:, 1])


def test_a_series_may_hold_arrays_that_differ_in_shape() -> None:
    waves = pandas.Series([np.ones((length, 2), np.float32) for length in (2, 3, 5)], index=[2, 1, 0])
    dataset = map_style((waves, [0, 1, 0]))
    assert dataset.sample_spec == SampleSpec.of((None, 2), "float32", 5 * 2 * 4)
    assert dataset.read(0)[0].shape == (2, 2)  # type: ignore[union-attr]


def test_columns_that_no_network_takes_are_named() -> None:
    frame = shuffled().assign(name="Ann")
    with pytest.raises(DataError, match=r"^map_style: column 'name' holds str, allowed: numbers$"):
        map_style((frame, CLASSES))
    with pytest.raises(DataError, match=r"^map_style: a table without columns$"):
        map_style((frame[[]], CLASSES))
    twice = pandas.concat([frame, frame["age"]], axis=1)
    with pytest.raises(DataError, match=r"several columns 'age', allowed: one of each name$"):
        map_style(twice, sample=["age"], label="risk")
    with pytest.raises(DataError, match=r"^map_style: got a dict in a pair, allowed: arrays, tensors, lists"):
        map_style(({2: VALUES[0], 0: VALUES[1]}, [0, 1]))


def test_arrays_are_no_tables() -> None:
    assert [is_table(each) for each in (VALUES, VALUES.tolist(), shuffled(), shuffled()["age"])] == [
        False,
        False,
        True,
        False,
    ]
    assert by_place(VALUES) is VALUES


def test_pandas_is_not_imported_for_it() -> None:
    program = (
        "import sys, numpy\nfrom hpcbal.data import map_style\n"
        "map_style((numpy.zeros((9, 2)), [0, 1, 0] * 3))\nsys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
