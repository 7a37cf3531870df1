"""Samples of unequal length: padding changes neither losses nor gradients, and nothing is traced again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcbal.dataplane.reader import Batch
from hpcbal.errors import InputError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.rank_share import LENGTHS_PER_OCTAVE, padded, padded_length, varying_axes
from hpcbal.training.step import evaluate_step, train_step

Make = Callable[..., Any]
SHAPE, CLASSES = (None, 3), 5
MODELS = {
    "hpcbal.models:recurrent": {"units": 4, "layers": 2},
    "hpcbal.models:temporal_cnn": {"filters": 4, "kernel_size": 3, "blocks": 2},
}


def series(lengths: Sequence[int], seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    n = len(lengths)
    return Batch(np.arange(n), [random.normal(size=(k, 3)) for k in lengths], random.integers(0, CLASSES, n))


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    backend = TensorFlowBackend(precision="float64")

    def make(model: str, **args: Any) -> Any:
        return backend.build(make_dnn(model=model, **args), make_spec(shape=SHAPE), CLASSES, 0)

    return make


@pytest.mark.parametrize("model", MODELS)
def test_a_padded_share_learns_what_its_samples_teach_one_by_one(build: Make, model: str) -> None:
    """The oracle: each series alone, where nothing is padded."""
    replica, batch = build(model, **MODELS[model]), series((7, 2, 11, 1))
    together = replica.compute(batch, 6)
    alone = [
        replica.compute(Batch(batch.ids[i : i + 1], [batch.x[i]], batch.y[i : i + 1]), 6) for i in range(4)
    ]
    assert together.sums.loss == pytest.approx(sum(each.sums.loss for each in alone), rel=1e-12)
    for index, tensor in enumerate(together.tensors):
        total = sum(each.tensors[index].numpy() for each in alone)
        np.testing.assert_allclose(tensor.numpy(), total, atol=1e-12)
    assert any(np.abs(tensor.numpy()).max() > 1e-3 for tensor in together.tensors)


@pytest.mark.parametrize("model", MODELS)
def test_series_of_any_length_are_traced_once(build: Make, model: str) -> None:
    replica = build(model, **MODELS[model])
    for step, lengths in enumerate(((4, 9), (30,), (1, 2, 3), (17, 16))):
        train_step(replica, series(lengths, step), len(lengths), LocalCollective())
        evaluate_step(replica, series(lengths, step), LocalCollective())
    assert replica.num_traces == 2  # a step alone, evaluate


def test_a_weight_replaces_the_share_of_the_samples(build: Make) -> None:
    replica, batch = build("hpcbal.models:temporal_cnn"), series((3, 8, 5))
    plain, weighted = replica.compute(batch, 3), replica.compute(batch, 12, weight=0.4)
    for mean, tensor in zip(plain.tensors, weighted.tensors, strict=True):
        np.testing.assert_allclose(tensor.numpy(), 0.4 * mean.numpy(), rtol=1e-12, atol=1e-15)


def test_a_model_must_take_the_mask(build: Make) -> None:
    with pytest.raises(InputError, match=r"without the argument mask.*allowed: call\(self, x, mask=None\)"):
        build("training_models:maskless")
    (warning,) = build("training_models:unmasked").warnings
    assert warning.startswith("DNN dnn: model training_models:unmasked: zeros that pad a short sample count")
    assert "layers ignore the mask: conv1d (Conv1D)" in warning


@pytest.mark.parametrize("default", ["required", "none"])
@pytest.mark.parametrize("length", [None, 7])
def test_a_model_must_also_work_without_a_mask(
    make_dnn: Make, make_spec: Make, default: str, length: int | None
) -> None:
    """Padded or not: the sentence is ours, not TensorFlow's."""
    dnn, spec = make_dnn(model="training_models:masked", mask=default), make_spec(shape=(length, 3))
    with pytest.raises(InputError, match=r"fails without one, allowed: call\(self, x, mask=None\)") as caught:
        TensorFlowBackend(precision="float64").build(dnn, spec, CLASSES, 0)
    assert "\n" not in str(caught.value)
    assert "docs/your-own-model-and-data.md, docs/unequal-samples.md" in str(caught.value)


def test_a_model_may_need_long_series(build: Make) -> None:
    assert build("training_models:wide").num_parameters == 64 * 3 * 2 + 2 + 2 * CLASSES + CLASSES


def test_samples_are_padded_to_the_longest_on_every_axis_that_differs() -> None:
    x, mask = padded([np.ones((2, 3, 1)), 2 * np.ones((1, 4, 1))], (None, None, 1), "float32")
    assert x.shape == (2, 2, 4, 1)
    assert x.dtype == np.float32
    assert mask.tolist() == [[[True] * 3 + [False]] * 2, [[True] * 4, [False] * 4]]
    np.testing.assert_array_equal(x[..., 0] > 0, mask)
    assert varying_axes((None, 5, None)) == (0, 2)


def test_padded_lengths_are_few_and_little_longer() -> None:
    """Libraries prepare their kernels for each shape."""
    lengths = range(1, 3000)
    assert [padded_length(length) for length in (0, 1, 15, 16, 17, 33, 200, 1344)] == [
        *(0, 1, 15, 16, 18, 36, 208, 1408)
    ]
    assert all(length <= padded_length(length) <= length * (1 + 1 / LENGTHS_PER_OCTAVE) for length in lengths)
    assert len({padded_length(length) for length in range(1024, 2048)}) == LENGTHS_PER_OCTAVE + 1
    x, mask = padded([np.ones((65, 2)), np.ones((3, 2))], (None, 2), "float32")
    assert (x.shape, mask.shape, mask.sum()) == ((2, 72, 2), (2, 72), 68)


def test_a_limit_cuts_padded_lengths_but_no_sample() -> None:
    for length in range(1, 300):
        for most in range(length, 340):
            assert padded_length(length, most / length) == min(padded_length(length), most)
    assert padded_length(65, 0.5) == 65
    long = [np.ones((65, 33, 2))]
    limits = {1.0: (65, 33), 1.05: (68, 33), 72 / 65: (72, 33), 1.15: (72, 34), math.inf: (72, 36)}
    for limit, lengths in limits.items():
        assert padded(long, (None, None, 2), "float32", limit)[0].shape == (1, *lengths, 2)


def test_a_share_is_padded_up_to_its_limit_of_work(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model gets padded samples, a single long series included."""
    replica, shapes = build("hpcbal.models:temporal_cnn"), []
    inputs = replica._input.for_model
    monkeypatch.setattr(replica._input, "for_model", lambda x: (shapes.append(x[0].shape), inputs(x))[1])
    monkeypatch.setattr(replica, "_evaluate", replica._traced_evaluate)  # runs without a graph
    for lengths, most_work in (((65, 3), 132), ((65,), 65), ((65,), 1e9)):
        limit = most_work / (len(lengths) * max(lengths))
        replica.evaluate(replace(series(lengths), padding_limit=limit))
    assert [tuple(shape) for shape in shapes] == [(2, 66, 3), (1, 65, 3), (1, 72, 3)]
