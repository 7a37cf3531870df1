"""A Keras model on parameter servers trains as Keras itself does."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
from paramserver_job import Rotation, Setup, run_job

from hpcbal.errors import InputError
from hpcbal.paramserver.alone import Alone, train_alone
from hpcbal.paramserver.api.batch import Batch, gather_batch
from hpcbal.paramserver.api.update import AppError
from hpcbal.paramserver.apps import samples
from hpcbal.paramserver.apps.sources import ArraySource
from hpcbal.paramserver.networks import KerasNetwork

HERE = __name__
BUILDING = threading.Lock()
"""Executors build their models in processes of their own. Here they are threads, and Keras has one seed."""


def dense(
    input_shape: tuple[int, ...], num_classes: int, width: int = 8, dropout: float = 0.0
) -> keras.Model:
    layers = [keras.layers.Flatten(), keras.layers.Dense(width, "tanh")]
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([keras.Input(input_shape), *layers, keras.layers.Dense(num_classes)])


def normalised(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    layers = [keras.layers.Flatten(), keras.layers.Dense(6), keras.layers.BatchNormalization(momentum=0.8)]
    return keras.Sequential([keras.Input(input_shape), *layers, keras.layers.Dense(num_classes)])


def source_of(num_samples: int = 60, num_validation: int = 0, is_regression: bool = False) -> ArraySource:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_samples, 3, 2)).astype(np.float32)
    labels: np.ndarray[Any, Any] = (x.sum(axis=(1, 2)) > 0).astype(np.int64)
    if is_regression:
        labels = x.sum(axis=(1, 2), dtype=np.float32)[:, np.newaxis]
    is_validation = np.zeros(num_samples, bool)
    is_validation[rng.permutation(num_samples)[:num_validation]] = True
    facts = {"num_classes": 1 if is_regression else 2, "num_validation": num_validation}
    return ArraySource({"samples": x, "labels": labels, "is_validation": is_validation}, facts)


def app_of(source: ArraySource | None = None, model: str = f"{HERE}:dense", **args: Any) -> KerasNetwork:
    app = KerasNetwork(source or source_of(), model, learning_rate=0.2, seed=5, **args)
    with BUILDING:
        assert app.tables()
    return app


PAIRS = ArraySource(
    {"samples": np.zeros((4, 3), np.float32), "labels": np.zeros((4, 2), np.float32)}, {"num_classes": 3}
)


def batch_of(alone: Alone, numbers: Mapping[int, list[int]], step_samples: int | None = None) -> Batch:
    slices = [(alone.data_blocks[block], 0, np.array(found)) for block, found in numbers.items()]
    return gather_batch(slices, seed=0, epoch=0, step_samples=step_samples)


def keras_weights(app: KerasNetwork, values: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the content of the table, variable by variable."""
    flat, found = values["weights"].reshape(-1), []
    for variable in app.replica.model.trainable_variables:
        size = int(np.prod(variable.shape))
        found.append(flat[:size].reshape(variable.shape))
        flat = flat[size:]
    assert not flat.any(), "the end of the last row"
    return found


def test_steps_over_all_samples_are_those_of_keras() -> None:
    """Full batches: the order of samples does not matter."""
    app = app_of(l2=0.01)
    alone = Alone(app, mini_batch=60)
    model = app.replica.model
    app.replica.load(*app.replica.first)
    columns = app.source.read(np.arange(60))
    optimizer = keras.optimizers.SGD(0.2, weight_decay=None)
    model = keras.models.clone_model(model)
    model.set_weights(app.replica.model.get_weights())
    for weight in model.trainable_variables:
        weight.regularizer = keras.regularizers.L2(0.005)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(5):
        alone.train_epoch()
        model.fit(columns["samples"], columns["labels"], batch_size=60, verbose=0)
    for found, wanted in zip(keras_weights(app, alone.values), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_validation", [0, 20])
def test_updates_of_a_step_are_the_sum_of_those_of_its_parts(num_validation: int) -> None:
    app = app_of(source_of(num_validation=num_validation), l2=0.01)
    alone = Alone(app, mini_batch=60, num_data_blocks=2)
    whole = app.compute(batch_of(alone, {0: [1, 5, 7], 1: [2, 3]}), alone.values)
    parts = [app.compute(batch_of(alone, {0: [1, 5, 7]}, 5), alone.values)]
    parts.append(app.compute(batch_of(alone, {1: [2, 3]}, 5), alone.values))
    total = sum(np.asarray(part["weights"]) for part in parts)
    np.testing.assert_allclose(total, np.asarray(whole["weights"]), rtol=1e-5, atol=1e-8)


def test_synchronous_training_on_servers_equals_that_of_one_process() -> None:
    setup = Setup(app_of, [1, 2], [3, 4], mini_batch=20, epochs=3, after=Rotation(2, 4, limit=5))
    master, _ = run_job(setup)
    _, wanted = train_alone(app_of(), 3, mini_batch=20, seed=3, num_data_blocks=6)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert master.reconfigured
    for record, metrics in zip(master.machine.history, wanted, strict=True):
        assert dict(record.metrics) == pytest.approx(metrics, rel=1e-4)


@pytest.mark.parametrize("model", ["dense", "normalised"])
def test_asynchronous_training_learns(model: str) -> None:
    setup = Setup(
        lambda: app_of(model=f"{HERE}:{model}"), [1, 2], [3], mini_batch=10, epochs=12, staleness=None
    )
    master, _ = run_job(setup)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    losses = [record.metrics["loss"] for record in master.machine.history]
    assert losses[-1] < 0.6 * losses[0]
    assert master.machine.history[-1].metrics["accuracy"] > 0.85


def test_moving_statistics_move_as_in_keras() -> None:
    app = app_of(model=f"{HERE}:normalised")
    alone = Alone(app, mini_batch=60)
    batch = batch_of(alone, {0: [3, 4, 8, 9, 20]})
    moved = app.compute(batch, alone.values)["statistics"]
    model = app.replica.model
    app.replica.load(*app.replica.first)
    before = [variable.numpy() for variable in model.non_trainable_variables]
    model(batch.array("samples"), training=True)
    differences = [v.numpy() - b for v, b in zip(model.non_trainable_variables, before, strict=True)]
    wanted = np.concatenate([each.reshape(-1) for each in differences])
    np.testing.assert_allclose(np.asarray(moved).reshape(-1)[: len(wanted)], wanted, rtol=1e-4, atol=1e-6)


def test_workers_of_one_step_cannot_move_statistics() -> None:
    app = app_of(model=f"{HERE}:normalised")
    alone = Alone(app, mini_batch=60)
    with pytest.raises(AppError, match=r"has moving statistics.*use consistency: async"):
        app.compute(batch_of(alone, {0: [3, 4]}, step_samples=5), alone.values)


def test_dropout_draws_the_same_for_the_same_turn_and_anew_in_the_next_epoch() -> None:
    app = app_of(args={"dropout": 0.5})
    alone = Alone(app, mini_batch=60)
    slices = [(alone.data_blocks[0], 0, np.arange(20))]
    turns = [gather_batch(slices, seed=0, epoch=epoch) for epoch in (0, 1, 0)]
    first, other, again = (np.asarray(app.compute(turn, alone.values)["weights"]) for turn in turns)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_validation_samples_are_evaluated_and_not_trained_on() -> None:
    source = source_of(num_validation=20)
    app = app_of(source)
    alone = Alone(app, mini_batch=30, num_data_blocks=3)
    metrics = alone.evaluate()
    assert list(metrics) == ["val_loss", "val_accuracy", "loss", "accuracy"]
    columns = source.read(np.arange(60))
    chosen = columns["is_validation"]
    logits = app.replica.model(columns["samples"]).numpy()
    losses = keras.losses.sparse_categorical_crossentropy(columns["labels"], logits, from_logits=True).numpy()
    assert metrics["val_loss"] == pytest.approx(losses[chosen].mean(), rel=1e-5)
    assert metrics["loss"] == pytest.approx(losses[~chosen].mean(), rel=1e-5)
    changed = source.read(np.arange(60))
    changed["labels"][chosen] = 1 - changed["labels"][chosen]
    other = app_of(ArraySource(changed, source.facts))
    trained = [Alone(each, mini_batch=30, num_data_blocks=3) for each in (app, other)]
    for each in trained:
        each.train_epoch()
    np.testing.assert_array_equal(trained[0].values["weights"], trained[1].values["weights"])


def test_a_loss_that_is_no_number_is_one() -> None:
    app = app_of()
    alone = Alone(app, mini_batch=60)
    alone.values["weights"][:] = np.nan
    assert np.isnan(alone.evaluate()["loss"])
    with pytest.raises(
        AppError, match=r"epoch 1: the loss .* is not finite; a smaller learning_rate may help"
    ):
        alone.train_epoch()


def test_regression_with_a_loss_and_metrics_of_keras() -> None:
    app = app_of(source_of(is_regression=True), loss="mean_squared_error", metrics=["mean_absolute_error"])
    before = Alone(app, mini_batch=10).evaluate()
    assert list(before) == ["loss", "mean_absolute_error"]
    _, after = train_alone(app, 40, mini_batch=10)
    assert after[-1]["loss"] < 0.1 * before["loss"]
    assert after[-1]["mean_absolute_error"] < 0.4 * before["mean_absolute_error"]


def test_every_rank_begins_with_the_same_weights() -> None:
    first, second, other = app_of(), app_of(), KerasNetwork(source_of(), f"{HERE}:dense", seed=6)
    rows = np.arange(first.tables()[0].num_rows)
    rng = np.random.default_rng(0)
    assert np.array_equal(first.initial("weights", rows, rng), second.initial("weights", rows, rng))
    assert not np.array_equal(first.initial("weights", rows, rng), other.initial("weights", rows, rng))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0}, "args.learning_rate of KerasNetwork: got 0, allowed: a number > 0"),
        ({"seed": -1}, "args.seed of KerasNetwork: got -1"),
        ({"loss": "least"}, "args.loss of KerasNetwork: got 'least', allowed: "),
        ({"metrics": ["nothing"]}, "args.metrics of KerasNetwork: got 'nothing', allowed: "),
        ({"model": "no_such_module:f"}, "no_such_module"),
        ({"args": {"depth": 3}}, "depth"),
        ({"loss": "mean_squared_error", "model": f"{HERE}:nothing"}, "nothing"),
        ({"source": ArraySource({"x": np.zeros(3)}, {})}, "columns samples and labels; this one has x"),
        ({"source": PAIRS}, "labels have shape (2,) and type float32, which the default loss"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(change: dict[str, Any], message: str) -> None:
    args: dict[str, Any] = {"source": source_of(), "model": f"{HERE}:dense", **change}
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        KerasNetwork(**args).tables()
    assert "\n" not in str(caught.value)
    assert type(caught.value).__module__ == "hpcbal.errors"


def test_a_dataset_of_an_ensemble_keeps_its_shape_and_holds_samples_out() -> None:
    source = samples("hpcbal.data:digits", validation_fraction=0.25, seed=1)
    columns = source.read(np.arange(source.num_samples))
    assert columns["samples"].shape[1:] == (8, 8, 1)
    assert columns["samples"].dtype == np.float32
    assert 0 < columns["samples"].max() <= 1
    assert source.facts == {"num_classes": 10, "num_validation": columns["is_validation"].sum()}
    assert columns["is_validation"].mean() == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"num_samples": 0}, "data.args.num_samples: got 0, allowed: >= 1"),
    ],
)
def test_wrong_choices_of_samples_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        samples("hpcbal.data:digits", **args)
