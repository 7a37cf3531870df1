"""Keras models train exactly, are traced once, and are saved and loaded completely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcbal.config import DnnConfig
from hpcbal.errors import CheckpointError, InputError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.groups import GroupFailed, NonFiniteError
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.keras.trainable import make_optimizer
from hpcbal.training.step import evaluate_step, train_step

Make = Callable[..., Any]
LINEAR, NORMALISED = "training_models:linear", "training_models:normalised"


@pytest.fixture
def backend() -> TensorFlowBackend:
    return TensorFlowBackend(precision="float64")


@pytest.fixture
def build(backend: TensorFlowBackend, make_dnn: Make, make_spec: Make) -> Make:
    def make(model: str = LINEAR, seed: int = 0, **given: Any) -> Any:
        return backend.build(make_dnn(model=model, **given), make_spec(), 5, seed)

    return make


def assert_equal_states(one: Any, other: Any) -> None:
    assert list(one.state()) == list(other.state())
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, other.state()[name], err_msg=name)


def test_shares_add_up_to_the_whole_step(build: Make, make_batch: Make) -> None:
    replica, batch = build(), make_batch(9)
    whole = replica.compute(batch, 9)
    parts = [
        replica.compute(type(batch)(batch.ids[a:b], batch.x[a:b], batch.y[a:b]), 9)
        for a, b in ((0, 2), (2, 3), (3, 9))
    ]
    for index, expected in enumerate(whole.tensors):
        total = sum(part.tensors[index].numpy() for part in [*parts, replica.zeros()])
        np.testing.assert_allclose(total, expected.numpy(), atol=1e-13)
    assert sum(part.sums.loss for part in parts) == pytest.approx(whole.sums.loss, rel=1e-12)


def test_step_equals_keras_own_training_step(build: Make, make_batch: Make) -> None:
    """The oracle: Keras' own training loop on the same batches, batch norm included."""
    replica = build(NORMALISED, learning_rate=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    twin = keras.models.clone_model(replica._model.model)
    twin.set_weights(replica._model.get_weights())
    twin.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    for step, n in enumerate((8, 3, 5)):
        batch = make_batch(n, step)
        train_step(replica, batch, n, LocalCollective())
        twin.train_on_batch(batch.x, batch.y)
    for ours, theirs in zip(replica._model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_moving_statistics_are_those_of_the_whole_step(build: Make, make_batch: Make) -> None:
    """For the first layer with batch norm: the input of later ones depends on the ranks' own statistics."""
    split, whole, batch = build(NORMALISED), build(NORMALISED), make_batch(9)
    batch.x[3:] += 5.0  # the ranks' means are far apart
    for _ in range(3):
        train_step(whole, batch, 9, LocalCollective())
        parts = [
            split.compute(type(batch)(batch.ids[a:b], batch.x[a:b], batch.y[a:b]), 9).tensors
            for a, b in ((0, 3), (3, 4), (4, 9))
        ]
        split.apply([sum(tensor) for tensor in zip(*parts, strict=True)])
        moving = {name: array for name, array in split.state().items() if "moving" in name}
        assert len(moving) == 2
        for name, array in moving.items():
            np.testing.assert_allclose(array, whole.state()[name], rtol=1e-12)
        split.load_state(whole.state())


def test_moving_variances_do_not_become_negative(make_dnn: Make, make_spec: Make, make_batch: Make) -> None:
    """Rounding of float32 is larger than the variance where means are this large."""
    backend = TensorFlowBackend(precision="float32")
    replica = backend.build(make_dnn(model=NORMALISED), make_spec(dtype="float32"), 5, 0)
    batch = make_batch(4, dtype="float32")
    batch.x[:] = 1e5
    for _ in range(5):
        train_step(replica, batch, 4, LocalCollective())
    (variance,) = [array for name, array in replica.state().items() if "moving_variance" in name]
    assert (variance >= 0.0).all()


def test_changing_batch_sizes_are_traced_once(build: Make, make_batch: Make) -> None:
    replica = build(NORMALISED)
    for n in (4, 1, 7, 2):
        train_step(replica, make_batch(n), n, LocalCollective())
        evaluate_step(replica, make_batch(n), LocalCollective())
    assert replica.num_traces == 2  # a step alone, evaluate
    for n in (4, 1, 7, 2):
        replica.apply(replica.compute(make_batch(n), n).tensors)
    assert replica.num_traces == 4  # compute, apply


@pytest.mark.parametrize("model", [LINEAR, NORMALISED, "training_models:random"])
def test_a_step_alone_is_compute_and_apply_in_one_call(build: Make, make_batch: Make, model: str) -> None:
    """Random layers draw the same numbers, and statistics move by the same difference."""
    alone, parted = build(model), build(model)
    for step, n in enumerate((5, 3, 4)):
        batch = make_batch(n, step)
        contribution = parted.compute(batch, n)
        parted.apply(contribution.tensors)
        sums = train_step(alone, batch, n, LocalCollective()).sums
        assert sums.loss == pytest.approx(contribution.sums.loss)
        assert (sums.states.tolist(), sums.count) == (contribution.sums.states.tolist(), n)
        for name, array in alone.state().items():
            np.testing.assert_allclose(array, parted.state()[name], atol=1e-12, err_msg=name)


def test_computing_changes_nothing(build: Make, make_batch: Make) -> None:
    replica, untouched = build(NORMALISED), build(NORMALISED)
    replica.compute(make_batch(4), 4)
    replica.evaluate(make_batch(4))
    assert_equal_states(replica, untouched)


def test_dropout_changes_from_step_to_step_and_from_share_to_share(build: Make, make_batch: Make) -> None:
    replica, twin = build("training_models:random"), build("training_models:random", seed=3)
    batch = make_batch(4)
    other_share = type(batch)(batch.ids + 100, batch.x, batch.y)

    def gradient(of: Any, share: Any) -> np.ndarray:
        return of.compute(share, 4).tensors[0].numpy()

    first = gradient(replica, batch)
    np.testing.assert_array_equal(first, gradient(replica, batch))
    assert not np.array_equal(first, gradient(replica, other_share))
    replica.apply(replica.zeros().tensors)
    assert not np.array_equal(first, gradient(replica, batch))
    twin.load_state(replica.state())
    np.testing.assert_array_equal(gradient(replica, batch), gradient(twin, batch))
    assert replica.evaluate(batch) == replica.evaluate(batch)


def test_state_that_cannot_be_summed_causes_one_warning_and_stays(build: Make, make_batch: Make) -> None:
    replica = build("training_models:counting")
    train_step(replica, make_batch(4), 4, LocalCollective())
    (warning,) = replica.warnings
    assert "not updated in training, because they are not floating-point numbers: " in warning
    assert warning.endswith("/calls")
    assert [int(array) for name, array in replica.state().items() if name.endswith("calls")] == [0]


@pytest.mark.parametrize("model", [LINEAR, NORMALISED, "training_models:random"])
def test_models_whose_whole_state_is_summed_cause_no_warning(build: Make, model: str) -> None:
    assert not build(model).warnings


def test_initial_weights_depend_on_seed_and_name_only(build: Make) -> None:
    first = build(name="a", seed=1)
    build(name="b", seed=2)
    assert_equal_states(first, build(name="a", seed=1))
    kernel = "weights/sequential/dense/kernel"
    assert not np.array_equal(first.state()[kernel], build(name="b", seed=1).state()[kernel])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_continues_from_saved_state_as_if_never_saved(
    build: Make, make_batch: Make, optimizer: str
) -> None:
    given = {"optimizer": optimizer, "momentum": 0.9 if optimizer == "sgd" else 0.0}
    replica, other = build(NORMALISED, **given), build(NORMALISED, seed=5, **given)
    for step in range(2):
        train_step(replica, make_batch(6, step), 6, LocalCollective())
    other.load_state(replica.state())
    for step in range(2, 4):
        for each in (replica, other):
            train_step(each, make_batch(6, step), 6, LocalCollective())
    assert_equal_states(replica, other)


def test_names_in_the_state_do_not_depend_on_what_was_built_before(build: Make) -> None:
    build(NORMALISED)
    names = list(build(NORMALISED, momentum=0.9).state())
    assert {
        "weights/sequential/conv2d/kernel",
        "weights/sequential/batch_normalization/moving_mean",
        "weights/sequential/dense/bias",
    } <= set(names)
    assert "optimizer/iteration" in names
    assert any(name.startswith("optimizer/") and "momentum" in name for name in names)
    assert not any("learning_rate" in name for name in names)  # the config sets that one


def test_array_that_does_not_fit_is_named_and_nothing_is_loaded(build: Make) -> None:
    replica, untouched = build(), build()
    arrays = {name: array + 1 for name, array in replica.state().items()}
    arrays["weights/sequential/dense/kernel"] = np.zeros((48, 4))
    message = r"layer sequential/dense: kernel is \(48, 5\), was \(48, 4\)"
    with pytest.raises(CheckpointError, match=message):
        replica.load_state(arrays)
    assert_equal_states(replica, untouched)


def test_nan_is_found_in_loss_and_gradients(build: Make, make_batch: Make) -> None:
    replica, untouched, batch = build(), build(), make_batch(4)
    batch.x[2, 0, 0, 0] = np.nan
    with pytest.raises(NonFiniteError):
        replica.evaluate(batch)
    with pytest.raises(
        GroupFailed, match=r"the loss \(nan per sample\) or a gradient is not finite"
    ) as failed:
        train_step(replica, batch, 4, LocalCollective())
    assert (failed.value.cause, failed.value.local) == ("nan", True)
    assert_equal_states(replica, untouched)


def test_exhausted_memory_is_reported_as_memory_error(
    build: Make, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = build()

    def exhausted(*_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(replica, "_train_alone", exhausted)
    with pytest.raises(GroupFailed, match="OOM when allocating") as failed:
        train_step(replica, make_batch(2), 2, LocalCollective())
    assert failed.value.cause == "oom"


def test_float32_and_integer_samples_train(make_dnn: Make, make_spec: Make, make_batch: Make) -> None:
    backend = TensorFlowBackend(precision="float32")
    replica = backend.build(make_dnn(model=LINEAR), make_spec(dtype="uint8"), 5, 0)
    outcome = train_step(replica, make_batch(3, dtype="uint8"), 3, LocalCollective())
    assert outcome.sums.count == 3
    assert {array.dtype.name for array in replica.state().values()} == {"float32", "int64"}
    assert replica.num_parameters == 3 * 9 + 3 + 48 * 5 + 5


def test_wrong_models_and_samples_are_refused(
    backend: TensorFlowBackend, build: Make, make_dnn: Make, make_spec: Make
) -> None:
    with pytest.raises(InputError, match=r"returned EmulatedModel, allowed: keras\.Model"):
        build("hpcbal.models:softmax")
    with pytest.raises(InputError, match=r"differ in size.*add resize"):
        backend.build(make_dnn(model=LINEAR), make_spec((None, None, 1)), 5, 0)
    with pytest.raises(InputError, match=r"outputs of shape .*, allowed: \(None, 5\)"):
        build("training_models:headless")


def test_optimizers_are_found_by_their_keras_name_in_any_case(make_dnn: Make) -> None:
    settings = make_dnn(optimizer="AdamW", learning_rate=0.01, weight_decay=0.1, momentum=0.0).optimizer
    optimizer = make_optimizer("dnn", settings)
    assert isinstance(optimizer, keras.optimizers.AdamW)
    assert optimizer.weight_decay == 0.1
    with pytest.raises(InputError, match=r"got 'sdg', allowed: .*sgd"):
        make_optimizer("dnn", make_dnn(optimizer="sdg").optimizer)
    with pytest.raises(InputError, match=r"optimizer adam: .*momentum"):
        make_optimizer("dnn", make_dnn(optimizer="adam", momentum=0.9).optimizer)


def test_closed_replica_holds_no_model(build: Make) -> None:
    replica = build()
    replica.close()
    assert replica.state() == {}
    assert not hasattr(replica, "_model")


def test_predictions_are_probabilities_and_change_nothing(build: Make, make_batch: Make) -> None:
    replica, batch = build(NORMALISED), make_batch(7)
    train_step(replica, batch, 7, LocalCollective())
    before = replica.state()
    predicted = replica.predict(batch)
    assert (predicted.dtype, predicted.shape) == (np.float64, (7, 5))
    logits = replica._model(batch.x, training=False)
    np.testing.assert_allclose(predicted, keras.ops.softmax(logits).numpy(), rtol=1e-6)
    losses = -np.log(predicted[np.arange(7), batch.y])
    assert losses.sum() == pytest.approx(replica.evaluate(batch).loss, rel=1e-6)
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("weights", ["balanced", {0: 2.0, 1: 0.5}], ids=["balanced", "given"])
def test_a_network_predicts_without_the_weights_of_its_classes(
    backend: TensorFlowBackend, make_spec: Make, make_batch: Make, weights: Any
) -> None:
    """`evaluate` and `export` have no training samples from which balanced weights could be counted."""
    optimizer = {"name": "sgd", "learning_rate": 0.1}
    dnn = DnnConfig(
        name="a",
        model=LINEAR,
        optimizer=optimizer,
        batch_size=8,
        stop={"max_epochs": 1},
        class_weights=weights,
    )
    batch = make_batch(6)
    plain, weighted = (
        backend.build(each.for_prediction(), make_spec(), 5, 0)
        for each in (dnn.model_copy(update={"class_weights": None}), dnn)
    )
    assert weighted.evaluate(batch) == plain.evaluate(batch)
