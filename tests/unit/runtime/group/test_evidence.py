"""The evidence of a group: each rank adds what it has, and an interrupted pass keeps what it had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hpcbal.config import EnsembleConfig
from hpcbal.data.dataset import BadSample
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.reader import Batch
from hpcbal.ensembling.evidence import WatchedItems, decoded
from hpcbal.errors import InputError
from hpcbal.runtime.group.evidence import GroupEvidence
from hpcbal.runtime.rank.data import watched_items
from hpcbal.training.backend import Replica

IDS = np.arange(10, 20)
WATCHED = WatchedItems("classes", np.array([11, 14, 15, 19]), np.zeros(4, np.int64))


def sure_of(sample_id: int) -> float:
    return 0.05 * (sample_id - 9)


def predict(batch: Any) -> np.ndarray:
    """Class 1 with a probability that depends on the sample, whose number is its only feature."""
    yes = 0.05 * (np.array([float(np.ravel(x)[0]) for x in batch.x]) - 9)
    return np.stack([1.0 - yes, yes], axis=1)


REPLICA = cast(Replica, SimpleNamespace(predict=predict))


def batch(*ids: int, as_list: bool = False) -> Batch:
    x: Any = np.array(ids, float).reshape(-1, 1)
    return Batch(np.array(ids), list(x) if as_list else x, np.ones(len(ids), np.int64))


@pytest.mark.parametrize("as_list", [False, True])
def test_ranks_add_what_they_have_and_a_broken_sample_is_missing(as_list: bool) -> None:
    ranks = [GroupEvidence(WATCHED, "a") for _ in range(2)]
    assert len(ranks[0].nothing) == len(ranks[0].numbers(REPLICA, batch(12, 13)))
    for shares in ([(15, 10, 11), (12, 13)], [(16, 17, 18), (19, 20)]):  # 14 is broken
        summed = sum(
            rank.numbers(REPLICA, batch(*ids, as_list=as_list))
            for rank, ids in zip(ranks, shares, strict=True)
        )
        for rank in ranks:
            rank.add(np.asarray(summed))
    texts = {rank.take() for rank in ranks}
    assert len(texts) == 1
    wanted = [sure_of(11), np.nan, sure_of(15), sure_of(19)]
    assert decoded(texts.pop())[1] == pytest.approx(np.array(wanted), rel=2e-3, nan_ok=True)
    assert np.isnan(decoded(ranks[0].take())[1]).all(), "the next pass begins with nothing"


def test_an_interrupted_pass_goes_on_with_what_it_had() -> None:
    whole, first = GroupEvidence(WATCHED, "a"), GroupEvidence(WATCHED, "a")
    for each in (whole, first):
        each.add(each.numbers(REPLICA, batch(10, 11, 14)))
    second = GroupEvidence(WATCHED, "a", first.array())
    for each in (whole, second):
        each.add(each.numbers(REPLICA, batch(15, 19)))
    assert second.take() == whole.take()
    other = GroupEvidence(WATCHED, "a", np.ones((2, 7)))  # of other settings
    assert np.isnan(decoded(other.take())[1]).all()


def test_outputs_that_do_not_fit_the_labels_are_an_error_of_the_dnn() -> None:
    bad = cast(Replica, SimpleNamespace(predict=lambda batch: np.ones((len(batch.ids), 3, 2))))
    with pytest.raises(InputError, match=r"DNN a: prune\.rule: committee: its outputs"):
        GroupEvidence(WATCHED, "a").numbers(bad, batch(11))


class Labelled:
    """Three samples of two classes; the first cannot be read."""

    num_classes = 2
    sample_spec = SampleSpec.of((1,), "float64")
    label_spec = LabelSpec((2,), "float32")

    def __init__(self, share: float) -> None:
        self._share = share

    def __len__(self) -> int:
        return 40

    def read(self, sample_id: int) -> Any:
        if sample_id % 7 == 0:
            raise BadSample("unreadable")
        return np.ones(1), np.array([self._share, 1.0 - self._share], np.float32)

    def describe(self, sample_id: int) -> str:
        return f"sample {sample_id}"


def test_shares_of_classes_are_refused_before_anything_is_trained() -> None:
    dnn = {
        "name": "a",
        "model": "m:net",
        "batch_size": 4,
        "loss": "categorical_crossentropy",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "stop": {"max_epochs": 1},
    }
    values = {"data": {"dataset": "m:data"}, "dnns": [dnn], "prune": {"rule": "committee"}}
    config = EnsembleConfig.model_validate(values)

    def watched(share: float) -> Any:
        source = PreprocessedSamples(Labelled(share), (), seed=1, validation_fraction=0.5)
        return watched_items(config, source)

    assert len(watched(1.0)) == 20
    with pytest.raises(InputError, match="give shares to several classes, allowed: one class each"):
        watched(0.7)


def test_a_search_for_the_committee_names_its_own_key() -> None:
    dnn = {"model": "m:net", "batch_size": 4, "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    dnn |= {"name": "n-0", "stop": {"max_epochs": 1}, "loss": "categorical_crossentropy"}
    search = {"sampler": "tpe", "for": "committee", "samples": 9, "space": {"seed": {"integers": [1, 9]}}}
    sweep = {"name": "n-{sample}", "search": search, "dnn": {}, "drawn": {"n-0": {"seed": 1}}}
    config = EnsembleConfig.model_validate(
        {"data": {"dataset": "m:data"}, "dnns": [dnn], "searches": [sweep]}
    )

    def watched(share: float, fraction: float) -> Any:
        return watched_items(
            config, PreprocessedSamples(Labelled(share), (), seed=1, validation_fraction=fraction)
        )

    assert len(watched(1.0, 0.5)) == 20
    with pytest.raises(InputError, match=r"search.for: committee: labels .*; use for: best"):
        watched(0.7, 0.5)
    with pytest.raises(
        InputError, match=r"search.for: got committee, but there are no validation .* for: best"
    ):
        watched(1.0, 0.0)
