"""Datasets of apps: real ones without a download, and generated ones with the stated statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

from hpcbal.data import LabelSpec, SampleSpec
from hpcbal.errors import DataError, InputError
from hpcbal.paramserver import apps
from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.api.app import SampleSource
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.apps import sources
from hpcbal.paramserver.apps.sources import STOP_WORDS, ArraySource, library_texts

GENERATED = {
    "ratings": apps.generated_ratings(300, 100, 20.0),
    "documents": apps.generated_documents(300, 500),
    "classes": apps.generated_classes(300, 1000),
    "regression": apps.generated_regression(300, 200),
}


def plain(column: Any) -> Any:
    return [part.tolist() for part in column] if isinstance(column, Ragged) else column.tolist()


@pytest.mark.parametrize("source", GENERATED.values(), ids=GENERATED)
def test_a_sample_depends_on_its_id_alone(source: SampleSource) -> None:
    whole, part = source.read(np.arange(300)), source.read(np.array([7, 200]))
    assert whole.keys() == part.keys()
    for name, column in part.items():
        both = [plain(whole[name])[sample] for sample in (7, 200)]
        assert plain(column) == both
        assert both[0] != both[1] or name == "labels"


@pytest.mark.parametrize(
    ("make", "ids", "fact"),
    [
        (apps.generated_ratings, "items", "num_items"),
        (apps.generated_documents, "words", "num_words"),
        (apps.generated_classes, "indices", "num_features"),
        (apps.generated_regression, "rows", "num_observations"),
    ],
)
def test_ids_are_in_range_and_the_seed_matters(make: Any, ids: str, fact: str) -> None:
    source, other = make(seed=1), make(seed=2)
    values = source.read(np.arange(200))[ids].values
    assert 0 <= values.min() <= values.max() < source.facts[fact]
    assert values.tolist() != other.read(np.arange(200))[ids].values.tolist()
    with pytest.raises(
        InputError, match=rf"data.args.seed of {make.__name__}: got -1, allowed: a number >= 0"
    ):
        make(seed=-1)


def test_ratings_have_the_statistics_of_netflix() -> None:
    columns = apps.generated_ratings(2000, 20_000, 200.0).read(np.arange(2000))
    items, ratings = columns["items"], columns["ratings"]
    assert isinstance(items, Ragged)
    assert isinstance(ratings, Ragged)
    assert set(ratings.values) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert ratings.values.mean() == pytest.approx(3.6, abs=0.2)
    assert items.lengths.mean() == pytest.approx(200, rel=0.15)
    assert np.median(items.lengths) == pytest.approx(200 * 96 / 209, rel=0.15)
    popularity = np.sort(np.bincount(items.values, minlength=20_000))[::-1]
    assert popularity[:200].sum() > 0.15 * popularity.sum()  # a hundredth of the items
    assert all(len(set(each)) == len(each) for each in (items[i].tolist() for i in range(50)))


def test_words_follow_a_power_law() -> None:
    words = apps.generated_documents(2000).read(np.arange(2000))["words"]
    assert isinstance(words, Ragged)
    assert words.lengths.mean() == pytest.approx(90, rel=0.05)
    frequency = np.sort(np.bincount(words.values))[::-1]
    assert frequency[0] > 5 * frequency[50] > 25 * frequency[1000]


def test_a_generated_target_is_what_its_weights_predict() -> None:
    source: Any = apps.generated_regression(200, 150, num_true=10, noise=0.0)
    columns = source.read(np.arange(200))
    target = np.zeros(150)
    for feature in range(200):
        target[columns["rows"][feature]] += source.weights[feature] * columns["values"][feature]
    assert np.count_nonzero(source.weights) == 10
    assert source.target == pytest.approx(target)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: apps.generated_classes(num_features=5, num_nonzero=6),
            "num_nonzero of generated_classes: got 6",
        ),
        (lambda: apps.generated_regression(num_features=5, num_true=6), "got num_true 6 and noise 0.1"),
        (lambda: apps.generated_ratings(num_users=0), "num_users of generated_ratings: got 0"),
        (lambda: apps.labelled("hpcbal.data:diabetes"), "has labels of shape"),
        (lambda: apps.pixels("hpcbal.data:diabetes"), "has numbers below 0"),
        (lambda: apps.regression("hpcbal.data:digit_scenes"), r"has labels of shape (10,)"),
        (lambda: apps.labelled("hpcbal.data:digits", num_samples=0), "num_samples: got 0"),
        (lambda: apps.labelled("hpcbal.data:generated_series"), "samples of unequal shape"),
    ],
)
def test_data_that_does_not_fit_is_an_error(call: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("app", "source", "message"),
    [
        (apps.MLR, apps.pixels(), "MLR needs a dataset that states num_features"),
        (apps.NMF, GENERATED["documents"], "NMF needs a dataset that states num_items"),
        (
            apps.LDA,
            GENERATED["ratings"],
            "LDA needs a dataset with columns words; this one has items, ratings",
        ),
        (apps.DenseNMF, GENERATED["classes"], "with columns features; this one has indices, values, labels"),
        (apps.Lasso, GENERATED["classes"], "Lasso needs a dataset with an attribute `target`"),
    ],
)
def test_an_app_says_what_is_missing_in_its_data(app: Any, source: SampleSource, message: str) -> None:
    with pytest.raises(InputError) as raised:
        app(source)
    assert message in str(raised.value)


LISTS = Ragged.of([np.arange(2), np.arange(3)])
ARRAY = np.ones((2, 4))


@pytest.mark.parametrize(
    ("app", "columns", "message"),
    [
        (apps.NMF, {"items": ARRAY, "ratings": LISTS}, "NMF needs a column 'items' of lists, one for each"),
        (apps.NMF, {"items": LISTS, "ratings": ARRAY}, r"gives an array of shape (2, 4) and type float64"),
        (apps.LDA, {"words": ARRAY}, "LDA needs a column 'words' of lists"),
        (apps.Lasso, {"column": LISTS}, "Lasso needs a column 'column' that is an array, one row for each"),
        (apps.Lasso, {"rows": LISTS, "values": ARRAY}, "Lasso needs a column 'values' of lists"),
        (
            apps.MLR,
            {"features": LISTS, "labels": np.zeros(2, int)},
            "a column 'features' that is an array",
        ),
        (apps.MLR, {"indices": ARRAY, "values": LISTS, "labels": np.zeros(2, int)}, "a column 'indices' of"),
        (apps.DenseNMF, {"features": LISTS}, "DenseNMF needs a column 'features' that is an array"),
    ],
)
def test_an_app_says_which_of_its_columns_is_of_the_wrong_kind(app: Any, columns: Any, message: str) -> None:
    facts = {"num_items": 4, "num_words": 4, "num_features": 4, "num_classes": 2}
    with pytest.raises(InputError) as raised:
        app(ArraySource(columns, facts, target=np.ones(4)))
    assert message in str(raised.value)


def test_an_app_says_that_later_samples_are_of_another_kind_than_the_first() -> None:
    with pytest.raises(InputError, match="LDA needs a column 'words' of lists"):
        apps.LDA(GENERATED["documents"]).initial_state({"words": ARRAY}, np.random.default_rng(0))


def test_digits_serve_as_classes_and_as_ratings() -> None:
    classes, users = apps.labelled(num_samples=50), apps.pixels()
    read = classes.read(np.arange(50))
    assert classes.facts == {"num_features": 64, "num_classes": 10}
    assert np.asarray(read["features"]).max() == 1.0
    assert (users.num_samples, users.facts) == (1797, {"num_items": 64})
    ratings = users.read(np.array([3]))["ratings"]
    assert isinstance(ratings, Ragged)
    assert ratings[0].tolist() == np.asarray(read["features"])[3].tolist()


def test_features_of_a_regression_are_centred() -> None:
    source = apps.regression()
    columns = np.asarray(source.read(np.arange(10))["column"])
    assert columns.shape == (10, 442)
    assert columns.mean(axis=1) == pytest.approx(np.zeros(10), abs=1e-6)
    assert source.target is not None
    assert source.target.mean() == pytest.approx(0.0, abs=1e-6)


def test_columns_of_pandas_are_read_by_place() -> None:
    frame = pandas.DataFrame({"a": np.arange(6.0), "label": np.arange(6) % 2}).sample(
        frac=1.0, random_state=1
    )
    source = ArraySource({"features": frame[["a"]], "labels": frame["label"]}, {}, target=frame["a"])
    for ids in ([1, 2], [4, 0]):
        found = source.read(np.array(ids))
        assert plain(found["features"]) == [[frame["a"].iloc[place]] for place in ids]
        assert plain(found["labels"]) == [frame["label"].iloc[place] for place in ids]
    assert plain(source.target) == frame["a"].tolist()


class Rows:
    """A dataset with a split of its own."""

    num_classes = 2
    sample_spec = SampleSpec.of((2,), "float32")
    label_spec = LabelSpec()
    validation_ids = np.array([1, 3])

    def __len__(self) -> int:
        return 5

    def read(self, sample_id: int) -> Any:
        return np.full(2, sample_id, np.float32), sample_id % 2

    def describe(self, sample_id: int) -> str:
        return str(sample_id)


def test_validation_samples_of_a_dataset_are_left_out() -> None:
    source = apps.labelled(f"{__name__}:Rows")
    assert source.num_samples == 3
    assert plain(source.read(np.arange(3))["labels"]) == [0, 0, 0]


def test_the_texts_of_the_standard_library_have_topics() -> None:
    source = library_texts()
    words = source.read(np.arange(source.num_samples))["words"]
    assert isinstance(words, Ragged)
    assert source.num_samples > 1000
    assert words.lengths.min() >= 10
    assert not STOP_WORDS & set(source.vocabulary)
    assert {"file", "socket", "thread"} <= set(source.vocabulary)
    alone, metrics = train_alone(apps.LDA(source, num_topics=20), 4, mini_batch=500, num_data_blocks=4)
    assert metrics[-1]["perplexity"] < 0.9 * metrics[0]["perplexity"]
    assert alone.values["word_topics"].sum() == len(words.values)


def test_a_library_without_texts_is_an_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").write_text('"""Too few words."""\n', encoding="utf-8")
    monkeypatch.setattr(sources, "_directory", lambda: tmp_path)
    sources._texts.cache_clear()
    with pytest.raises(DataError, match="there are no modules with texts; install"):
        library_texts()
    sources._texts.cache_clear()


@pytest.mark.parametrize("ids", [[0, 1, 2], [1, 2, 3], [3], [2, 1], [0, 2], [], [1, 1]])
def test_arrays_in_memory_are_read_as_copies(ids: list[int]) -> None:
    """Neighbours, which are copied as a run, and others."""
    lists = [np.array(own, np.int64) for own in ([5], [], [6, 7], [8])]
    ragged, array = Ragged.of(lists), np.arange(8.0).reshape(4, 2)
    read = ArraySource({"lists": ragged, "array": array}, {}).read(np.array(ids, np.int64))
    assert plain(read["lists"]) == [lists[id_].tolist() for id_ in ids]
    assert plain(read["array"]) == array[ids].tolist()
    for column in read.values():
        own = column.values if isinstance(column, Ragged) else column
        own[:] = -1
    assert array.min() == 0.0
    assert ragged.values.min() == 5
