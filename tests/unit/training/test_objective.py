"""Losses and metrics: sums that are exact for any split of the samples, with Keras on the whole as oracle."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from hpcbal.config.schema.objective import KERAS_LOSSES, LossConfig, MetricConfig
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import InputError
from hpcbal.events.history import KERAS_METRICS
from hpcbal.training.backend import Sums
from hpcbal.training.keras.objective import KerasMetric
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend

Make = Callable[..., Any]
SHAPE = (6,)
CLASSES, NUMBER, NUMBERS, TAGS, PLACES, SHARES = (
    LabelSpec(),
    LabelSpec((), "float32"),
    LabelSpec((3,), "float32"),
    LabelSpec((4,), "float32"),
    LabelSpec((2, 2), "uint8"),
    LabelSpec((5,), "float32"),
)


@pytest.fixture(autouse=True)
def _own_objectives_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "programs"))


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(
        label: LabelSpec = CLASSES,
        num_outputs: int = 5,
        loss: str | LossConfig | None = None,
        metrics: tuple[str | MetricConfig, ...] | None = None,
        weights: np.ndarray | None = None,
        model: str = "own_models:dense",
        **given: Any,
    ) -> Any:
        if isinstance(loss, str):
            loss = LossConfig(name=loss)
        made = metrics and tuple(MetricConfig(name=m) if isinstance(m, str) else m for m in metrics)
        dnn = make_dnn(model=model, loss=loss, metrics=made, **given)
        backend = TensorFlowBackend(precision="float64")
        return backend.build(dnn, make_spec(SHAPE, "float64"), num_outputs, 0, (), label, weights)

    return make


def labels(spec: LabelSpec, n: int, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    if np.dtype(spec.dtype).kind in "iu":
        return rng.integers(0, num_classes, (n, *spec.shape)).astype(spec.dtype)
    if spec is SHARES:
        return rng.dirichlet(np.ones(5), n).astype(spec.dtype)
    if spec is TAGS:
        return rng.integers(0, 2, (n, *spec.shape)).astype(spec.dtype)
    return rng.normal(1.0, 1.0, (n, *spec.shape)).astype(spec.dtype)


def batch_of(make_batch: Make, spec: LabelSpec, n: int, num_classes: int, seed: int = 0) -> Any:
    kind = type(make_batch(1))
    rng = np.random.default_rng(seed)
    return kind(np.arange(n), rng.normal(size=(n, *SHAPE)), labels(spec, n, num_classes, rng))


def part(batch: Any, *places: int) -> Any:
    index = slice(*places)
    return type(batch)(batch.ids[index], batch.x[index], batch.y[index])


TASKS = [
    (CLASSES, 5, None, ("accuracy",)),
    (CLASSES, 5, None, ("sparse_categorical_crossentropy", "sparse_top_k_categorical_accuracy")),
    (CLASSES, 5, "sparse_categorical_crossentropy", ("accuracy",)),
    (SHARES, 5, None, ("accuracy", "kl_divergence", "categorical_crossentropy")),
    (NUMBER, 1, "huber", ("mae", "rmse", "r2_score")),
    (NUMBERS, 3, "mse", ("mean_absolute_error", "cosine_similarity", "mape")),
    (NUMBERS, 3, "log_cosh", ("log_cosh_error",)),
    (TAGS, 4, "binary_crossentropy", ("auc", "precision", "recall", "binary_accuracy", "accuracy")),
    (TAGS, 4, "binary_focal_crossentropy", ("f1_score", "true_positives", "false_negatives")),
    (TAGS, 4, "dice", ("binary_iou",)),
]


@pytest.mark.parametrize(("label", "num_outputs", "loss", "metrics"), TASKS)
def test_a_dnns_own_predictions_measure_as_the_dnn(
    build: Make, make_batch: Make, label: LabelSpec, num_outputs: int, loss: str | None, metrics: Any
) -> None:
    """An ensemble's predictions are measured in the same way."""
    replica = build(label, num_outputs, loss, metrics)
    batch = batch_of(make_batch, label, 11, num_outputs)
    expected, found = replica.evaluate(batch), replica.measure(batch.y, replica.predict(batch))
    assert found.count == expected.count == 11
    assert found.loss == pytest.approx(expected.loss, rel=1e-9)
    np.testing.assert_allclose(found.states, expected.states, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("label", "num_outputs", "loss", "metrics"), TASKS)
def test_sums_over_uneven_shares_are_keras_on_the_whole(
    build: Make, make_batch: Make, label: LabelSpec, num_outputs: int, loss: str | None, metrics: Any
) -> None:
    """Gradients, loss and every metric; empty shares add nothing."""
    replica = build(label, num_outputs, loss, metrics)
    batch = batch_of(make_batch, label, 23, num_outputs)
    whole = replica.compute(batch, 23)
    parts = [replica.compute(part(batch, *at), 23) for at in ((0, 1), (1, 13), (13, 23))]
    parts.append(replica.zeros())
    for index, expected in enumerate(whole.tensors):
        total = sum(each.tensors[index].numpy() for each in parts)
        np.testing.assert_allclose(total, expected.numpy(), atol=1e-10, rtol=1e-10)
    summed = sum((each.sums for each in parts), Sums())
    assert summed.count == 23
    evaluated = sum((replica.evaluate(part(batch, *at)) for at in ((0, 9), (9, 23))), Sums())
    outputs = replica._model(batch.x)
    link = replica._objective.predictions(outputs)
    for sums in (whole.sums, summed, evaluated):
        found = replica.metrics(sums)
        assert list(found) == ["loss", *metrics]
        assert found["loss"] == pytest.approx(replica.metrics(whole.sums)["loss"], rel=1e-9)
        for name in metrics:
            oracle = getattr(keras.metrics, KERAS_METRICS[name][0])()
            if name == "accuracy":
                kinds = {0: "SparseCategoricalAccuracy", 4: "BinaryAccuracy", 5: "CategoricalAccuracy"}
                oracle = getattr(keras.metrics, kinds[label.shape[0] if label.shape else 0])()
            oracle.update_state(batch.y, np.asarray(link, "float32") if "top_k" in name else link)
            assert found[name] == pytest.approx(float(np.mean(oracle.result())), rel=2e-5, abs=1e-6), name


@pytest.mark.parametrize(("label", "num_outputs", "loss", "metrics"), TASKS[2:])
def test_the_loss_is_that_of_keras(
    build: Make, make_batch: Make, label: LabelSpec, num_outputs: int, loss: str | None, metrics: Any
) -> None:
    replica = build(label, num_outputs, loss, metrics)
    batch = batch_of(make_batch, label, 9, num_outputs)
    kind = KERAS_LOSSES[loss] if loss else "CategoricalCrossentropy"
    given: dict[str, Any] = {"from_logits": True} if "rossentropy" in kind else {}
    if kind == "Dice":
        given["axis"] = [1]
    oracle = getattr(keras.losses, kind)(dtype="float64", **given)
    expected = float(np.mean(oracle(batch.y, replica._model(batch.x))))
    assert replica.metrics(replica.evaluate(batch))["loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("ignore:.*received .from_logits=True.*:UserWarning")
@pytest.mark.parametrize("activation", [None, "softmax"])
@pytest.mark.parametrize(
    "loss", ["sparse_categorical_crossentropy", "own_objectives:cross_entropy", "own_objectives:from_logits"]
)
def test_accuracy_compares_classes_whatever_the_loss_takes(
    build: Make, make_batch: Make, loss: str, activation: str | None
) -> None:
    """Also of a model that ends in softmax, and with a loss of a user's own."""
    replica = build(CLASSES, 5, loss, ("accuracy",), activation=activation)
    batch = batch_of(make_batch, CLASSES, 23, 5)
    sums = sum((replica.evaluate(part(batch, *at)) for at in ((0, 9), (9, 23))), Sums())
    right = np.argmax(replica._model(batch.x), axis=-1) == batch.y
    assert replica.metrics(sums)["accuracy"] == pytest.approx(right.mean(), rel=1e-6)


def test_accuracy_of_one_output_takes_it_for_the_probability_of_class_1(
    build: Make, make_batch: Make
) -> None:
    replica = build(CLASSES, 1, "own_objectives:of_yes", ("accuracy",), activation="sigmoid")
    batch = batch_of(make_batch, CLASSES, 23, 2)
    is_yes = np.asarray(replica._model(batch.x))[:, 0] > 0.5
    found = replica.metrics(replica.evaluate(batch))["accuracy"]
    assert found == pytest.approx(np.mean(is_yes == batch.y), rel=1e-6)


def test_a_class_at_each_place_of_an_image(build: Make, make_batch: Make) -> None:
    metric = MetricConfig(name="mean_iou", args={"num_classes": 3, "sparse_y_pred": False})
    loss = "sparse_categorical_crossentropy"
    replica = build(PLACES, 3, loss, (metric, "accuracy"), model="own_models:places")
    batch = batch_of(make_batch, PLACES, 11, 3)
    sums = sum((replica.evaluate(part(batch, *at)) for at in ((0, 4), (4, 11))), Sums())
    found, outputs = replica.metrics(sums), replica._model(batch.x)
    oracle = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    assert found["loss"] == pytest.approx(float(oracle(batch.y, outputs)), rel=1e-9)
    right = np.argmax(outputs, axis=-1) == batch.y
    assert found["accuracy"] == pytest.approx(right.mean(), rel=1e-6)
    iou = keras.metrics.MeanIoU(3, sparse_y_pred=False)
    iou.update_state(batch.y, outputs)
    assert found["mean_iou"] == pytest.approx(float(iou.result()), rel=1e-6)


@pytest.mark.parametrize("weights", ["class", "sample", "both"])
def test_weights_are_those_of_keras_own_training(build: Make, make_batch: Make, weights: str) -> None:
    """One step of Keras with class and sample weights; hpcbal in three shares."""
    by_class = {0: 3.0, 2: 0.5, 4: 0.0} if weights != "sample" else None
    by_sample = np.random.default_rng(5).uniform(0, 2, 20) if weights != "class" else None
    replica = build(class_weights=by_class, weights=by_sample, optimizer="sgd", learning_rate=0.1)
    batch = batch_of(make_batch, CLASSES, 20, 5)
    twin = keras.models.clone_model(replica._model.model)
    twin.set_weights(replica._model.get_weights())
    twin.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(True))
    of_each = np.ones(20) if by_sample is None else by_sample.astype(np.float32).astype(float)
    if by_class is not None:
        of_each = of_each * np.array([by_class.get(int(y), 1.0) for y in batch.y])
    loss = twin.train_on_batch(batch.x, batch.y, sample_weight=of_each)
    parts = [replica.compute(part(batch, *at), 20) for at in ((0, 6), (6, 7), (7, 20))]
    replica.apply([sum(tensors) for tensors in zip(*(each.tensors for each in parts), strict=True)])
    assert sum((each.sums for each in parts), Sums()).mean_loss == pytest.approx(float(loss), rel=1e-5)
    for ours, theirs in zip(replica._model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)


def test_a_models_own_losses_are_in_the_reported_loss(build: Make, make_batch: Make) -> None:
    plain, penalised = build(), build(model="own_models:penalised")
    batch = batch_of(make_batch, CLASSES, 8, 5)
    penalised.load_state(plain.state())
    kernels = [v for v in penalised._model.trainable_variables if v.path.endswith("kernel")]
    extra = 0.25 * sum(float(np.sum(np.square(v.numpy()))) for v in kernels)
    for ours, theirs in (
        (penalised.evaluate(batch), plain.evaluate(batch)),
        (penalised.compute(batch, 8).sums, plain.compute(batch, 8).sums),
    ):
        assert ours.mean_loss == pytest.approx(theirs.mean_loss + extra, rel=1e-9)


def test_a_loss_without_gradients_is_refused_unless_the_model_has_its_own(
    build: Make, make_batch: Make
) -> None:
    batch = batch_of(make_batch, NUMBER, 8, 1)
    with pytest.raises(InputError, match=r"no weight of the model has a gradient, .* remove argmax"):
        build(NUMBER, 1, "own_objectives:rounded").compute(batch, 8)
    build(NUMBER, 1, "own_objectives:rounded", model="own_models:penalised").compute(batch, 8)


def test_label_smoothing_is_that_of_keras(build: Make, make_batch: Make) -> None:
    replica = build(label_smoothing=0.2)
    batch = batch_of(make_batch, CLASSES, 8, 5)
    oracle = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2, dtype="float64")
    expected = float(oracle(np.eye(5)[batch.y], replica._model(batch.x)))
    assert replica.evaluate(batch).mean_loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("ending", "link"), [("sigmoid", "identity"), (None, "sigmoid")])
def test_a_cross_entropy_takes_what_the_model_ends_in(build: Make, ending: str | None, link: str) -> None:
    replica = build(TAGS, 4, "binary_crossentropy", activation=ending)
    assert replica._objective.links == {"": link}


def test_a_loss_and_a_metric_of_ones_own(build: Make, make_batch: Make) -> None:
    loss = LossConfig(name="own_objectives:quantile", args={"share": 0.9})
    replica = build(NUMBER, 1, loss, ("own_objectives:within_one",))
    batch = batch_of(make_batch, NUMBER, 12, 1)
    difference = batch.y[:, None].astype(float) - np.asarray(replica._model(batch.x))
    found = replica.metrics(replica.evaluate(batch))
    assert found["loss"] == pytest.approx(np.maximum(0.9 * difference, -0.1 * difference).mean(), rel=1e-9)
    assert found["within_one"] == pytest.approx((np.abs(difference) <= 1.0).mean(), rel=1e-6)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_metrics_of_every_dtype_are_those_of_keras(precision: str, dtype: str) -> None:
    own = importlib.import_module("own_objectives")
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 97)
    predictions = keras.ops.convert_to_tensor(rng.dirichlet(np.ones(3), 97).astype(precision))
    for make in (
        partial(own.MeanIoUOfProbabilities, 3),
        own.Hits,
        partial(keras.metrics.MeanMetricWrapper, keras.metrics.sparse_categorical_accuracy),
    ):
        alone, metric = make(dtype=dtype), KerasMetric(make(dtype=dtype))
        alone.update_state(y, predictions)
        metric.build(y[:5], predictions[:5])
        assert metric.why_not_additive(y[:5], predictions[:5]) == ""
        states = np.zeros(metric.num_states)
        for share in (slice(0, 30), slice(30, 97)):
            found = metric.states(y[share], predictions[share])
            states += np.concatenate([keras.ops.cast(each, "float64").numpy().ravel() for each in found])
        expected = keras.ops.cast(alone.result(), "float64").numpy()
        assert metric.result(states, 97) == pytest.approx(float(expected), rel=1e-6)


def test_a_metric_of_integers_gets_probabilities(build: Make, make_batch: Make) -> None:
    metric = MetricConfig(name="own_objectives:MeanIoUOfProbabilities", args={"num_classes": 5})
    replica = build(metrics=(metric,))
    batch = batch_of(make_batch, CLASSES, 90, 5)
    found = replica.metrics(replica.evaluate(batch))
    classes = np.argmax(replica.predict(batch), axis=-1)
    expected = jaccard_score(batch.y, classes, average="macro")
    assert found["MeanIoUOfProbabilities"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("label", "num_outputs", "loss", "metrics", "message"),
    [
        (NUMBER, 1, None, None, r"loss: labels have shape \(\) and type float32, which the default loss"),
        (
            NUMBER,
            1,
            "own_objectives:mean_of_batch",
            None,
            "returns one number for a batch, allowed: a number",
        ),
        (NUMBER, 1, "own_objectives:ranked", None, "the loss of a sample depends on the other samples"),
        (
            CLASSES,
            5,
            "mse",
            None,
            "loss mse: labels are numbers of classes, and the model returns 5 numbers for each; allowed for "
            "such labels: leave loss out, or set sparse_categorical_crossentropy",
        ),
        (CLASSES, 3, "categorical_crossentropy", None, "labels are numbers of classes"),  # as many as probes
        (
            NUMBER,
            5,
            "mse",
            None,
            r"labels have shape \(\), and the model returns outputs of shape \(5,\), all",
        ),
        (
            NUMBERS,
            1,
            "mse",
            None,
            r"shape \(1,\), allowed with this loss: outputs of the shape of the labels",
        ),
        (NUMBER, 1, "own_objectives:raising", None, "own_objectives.py:.*ValueError: no such label"),
        (NUMBER, 1, "own_objectives:nothing", None, "nothing"),
        (
            NUMBER,
            1,
            "mse",
            ("own_objectives:Largest",),
            "metric Largest: its states after all samples are not",
        ),
        (NUMBER, 1, "mse", ("own_objectives:Unfinished",), "metric Unfinished failed: .*no result yet"),
        (
            NUMBER,
            1,
            "mse",
            ("own_objectives:Named",),
            "metric Named failed: .*dict .low, high., allowed: a num",
        ),
        (NUMBER, 1, "mse", ("own_objectives:AsWideAsTheBatch",), "metric AsWideAsTheBatch failed: "),
        (NUMBER, 1, LossConfig(name="huber", args={"dleta": 1}), None, "arguments allowed: delta"),
        (NUMBER, 1, "mse", (MetricConfig(name="auc", args={"x": 1}),), "arguments allowed: num_thresholds"),
    ],
)
def test_what_cannot_be_summed_is_refused(
    build: Make, label: LabelSpec, num_outputs: int, loss: Any, metrics: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(label, num_outputs, loss, metrics)


def test_counts_over_several_thresholds_are_the_mean_of_keras(build: Make, make_batch: Make) -> None:
    """Keras returns its own variable as the result."""
    metric = MetricConfig(name="true_positives", args={"thresholds": [0.2, 0.6]})
    replica = build(TAGS, 4, "binary_crossentropy", (metric,))
    batch = batch_of(make_batch, TAGS, 23, 4)
    predictions = replica.predict(batch)
    expected = np.mean([np.sum((predictions > t) & (batch.y > 0)) for t in (0.2, 0.6)])
    assert replica.metrics(replica.evaluate(batch))["true_positives"] == pytest.approx(expected)


def test_class_weights_need_classes(build: Make) -> None:
    with pytest.raises(InputError, match="class_weights: got class 5, allowed: 0 to 4"):
        build(class_weights={5: 1.0})
    with pytest.raises(InputError, match="class_weights: labels have shape"):
        build(NUMBER, 1, "mse", class_weights={0: 1.0})


def test_too_many_states_are_refused(build: Make) -> None:
    metric = MetricConfig(name="mean_iou", args={"num_classes": 300, "sparse_y_pred": False})
    with pytest.raises(InputError, match="their states are 90000 numbers, allowed: at most 65536"):
        build(PLACES, 300, "sparse_categorical_crossentropy", (metric,), model="own_models:places")
