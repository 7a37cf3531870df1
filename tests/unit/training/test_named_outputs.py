"""Models with several inputs and outputs train as plain Keras and plain PyTorch train them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.training.backend import Contribution, LocalCollective, Replica, Sums
from hpcbal.training.keras.plain_model import write_model
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]
SAMPLE = SampleSpec.of_named(
    {"image": SampleSpec.of((4, 5, 2), "uint8"), "table": SampleSpec.of((3,), "float32")}
)
LABEL = LabelSpec.of_named(
    {"kind": LabelSpec(num_classes=3), "price": LabelSpec((), "float32", num_classes=1)}
)
SIZES = (8, 3, 5, 8, 7)
NAMES = ("pixels.weight", "pixels.bias", "columns.weight", "columns.bias", "norm.weight", "norm.bias")
NAMES += ("norm.running_mean", "norm.running_var", "kind.weight", "kind.bias", "price.weight", "price.bias")


def dnn_of(model: str = "named_models:keras_pair", **given: Any) -> DnnConfig:
    settings: dict[str, Any] = {
        "loss": {"kind": None, "price": "mse"},
        "loss_weights": {"price": 0.5},
        "metrics": {"kind": ["accuracy"], "price": ["mae"]},
        "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.875},
    }
    return DnnConfig.model_validate(
        {
            "name": "a",
            "model": model,
            "batch_size": 8,
            "stop": {"max_epochs": 1, "monitor": "val_loss"},
            **settings,
            **given,
        }
    )


def batch_of(make_batch: Make, num: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    arrays = {
        "image": rng.integers(0, 256, (num, 4, 5, 2)).astype("uint8"),
        "table": rng.normal(size=(num, 3)).astype("float32"),
    }
    labels = {"kind": rng.integers(0, 3, num), "price": rng.normal(size=num).astype("float32")}
    rows = [
        np.stack([spec.packed({name: each[i] for name, each in given.items()}) for i in range(num)])
        for spec, given in ((SAMPLE, arrays), (LABEL, labels))
    ]
    batch = make_batch(num)
    return type(batch)(batch.ids, rows[0], rows[1]), arrays, labels


def of_keras(dnn: DnnConfig, precision: str = "float64") -> Any:
    return TensorFlowBackend(precision=precision).build(dnn, SAMPLE, 4, 0, label=LABEL)


def of_torch(dnn: DnnConfig) -> Any:
    return TorchBackend(precision="float64").build(dnn, SAMPLE, 4, 0, label=LABEL)


@pytest.mark.parametrize("form", ["dicts", "lists", "subclass"])
def test_steps_are_those_of_plain_keras(make_batch: Make, form: str) -> None:
    import keras

    replica = of_keras(dnn_of(args={"form": form}))
    model = keras.models.clone_model(replica._model.model) if form != "subclass" else None
    if model is None:
        from named_models import keras_pair

        model = keras_pair({"image": (4, 5, 2), "table": (3,)}, {"kind": 3, "price": 1}, form=form)
        model({"image": np.zeros((1, 4, 5, 2)), "table": np.zeros((1, 3))})
    model.set_weights(replica._model.model.get_weights())
    losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "price": "mse"}
    metrics = {"kind": ["accuracy"], "price": ["mae"]}
    if form == "lists":
        losses, metrics = list(losses.values()), list(metrics.values())  # type: ignore[assignment]
    weights = {"kind": 1.0, "price": 0.5}
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.875),
        losses,
        loss_weights=list(weights.values()) if form == "lists" else weights,
        metrics=metrics,
    )
    for step, num in enumerate(SIZES):
        batch, arrays, labels = batch_of(make_batch, num, step)
        y: Any = list(labels.values()) if form == "lists" else labels
        model.reset_metrics()
        found = model.train_on_batch(arrays, y, return_dict=True)
        sums = train_step(replica, batch, num, LocalCollective()).sums
        shown = replica.metrics(sums)
        assert list(shown) == ["loss", "kind_accuracy", "price_mae", "kind_loss", "price_loss"]
        assert set(found) == set(shown)
        for name, value in found.items():
            assert shown[name] == pytest.approx(float(value), abs=1e-6), name
    for own, plain in zip(replica._model.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(own, plain, rtol=0.0, atol=1e-6)
    batch, arrays, labels = batch_of(make_batch, 9, 77)
    predicted, expected = replica.predict(batch), model(arrays, training=False)
    expected = dict(zip(["kind", "price"], expected, strict=True)) if form == "lists" else expected
    np.testing.assert_allclose(predicted["kind"], keras.ops.softmax(expected["kind"]), atol=1e-6)
    np.testing.assert_allclose(predicted["price"], expected["price"], atol=1e-6)


@pytest.mark.parametrize(("build", "model"), [(of_keras, "keras_pair"), (of_torch, "torch_pair")])
def test_the_classes_of_one_output_may_be_smoothed(make_batch: Make, build: Make, model: str) -> None:
    plain, smoothed = (
        build(dnn_of(f"named_models:{model}", label_smoothing=each)) for each in (0.0, {"kind": 0.25})
    )
    batch, _, labels = batch_of(make_batch, 8)
    shares = np.eye(3)[labels["kind"]] * 0.75 + 0.25 / 3
    expected = -(shares * np.log(plain.predict(batch)["kind"])).sum(1).mean()
    without, found = (each.metrics(each.evaluate(batch)) for each in (plain, smoothed))
    assert found["kind_loss"] == pytest.approx(expected, abs=1e-6)
    assert found["kind_loss"] != pytest.approx(without["kind_loss"], abs=1e-3)
    assert found["price_loss"] == pytest.approx(without["price_loss"], abs=1e-6)


def test_steps_are_those_of_plain_torch(make_batch: Make) -> None:
    import torch
    from named_models import torch_pair
    from torch.nn import functional

    replica = of_torch(dnn_of("named_models:torch_pair"))
    module = torch_pair({"image": (2, 4, 5), "table": (3,)}, {"kind": 3, "price": 1}).double()
    module.load_state_dict(replica.module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.875)
    for step, num in enumerate(SIZES):
        batch, arrays, labels = batch_of(make_batch, num, step)
        x = {name: torch.from_numpy(each).double() for name, each in arrays.items()}
        x["image"] = x["image"].permute(0, 3, 1, 2)
        y = {name: torch.from_numpy(each) for name, each in labels.items()}
        found = module(**x)
        kind = functional.cross_entropy(found["kind"], y["kind"])
        price = functional.mse_loss(found["price"][:, 0], y["price"].double())
        optimizer.zero_grad()
        (kind + 0.5 * price).backward()
        optimizer.step()
        shown = replica.metrics(train_step(replica, batch, num, LocalCollective()).sums)
        wanted = {"loss": kind + 0.5 * price, "kind_loss": kind, "price_loss": price}
        for name, value in wanted.items():
            assert shown[name] == pytest.approx(float(value.detach()), abs=1e-6), name
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(replica.module.state_dict()[name], tensor, rtol=0.0, atol=1e-6)


def test_both_frameworks_give_the_same_losses(make_batch: Make) -> None:
    ours, module = of_keras(dnn_of()), of_torch(dnn_of("named_models:torch_pair"))
    own = {variable.path: np.asarray(variable) for variable in ours._model.model.variables}
    layers = ("pixels", "columns", "kind", "price")
    begun = {
        f"weights/{layer}.{there}": own[f"{layer}/{here}"].T
        for layer in layers
        for here, there in (("kernel", "weight"), ("bias", "bias"))
    }
    module.load_state(module.state() | begun)
    for step, num in enumerate(SIZES):
        batch, _, _ = batch_of(make_batch, num, step)
        sums = [train_step(each, batch, num, LocalCollective()).sums for each in (ours, module)]
        found, other = ours.metrics(sums[0]), module.metrics(sums[1])
        assert found == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("build", [of_keras, of_torch])
def test_shares_of_any_size_add_up_to_the_step(make_batch: Make, build: Callable[..., Replica]) -> None:
    """Without batch normalisation in training the sum of shares is the step; its statistics are frozen."""
    model = "named_models:keras_pair" if build is of_keras else "named_models:torch_pair"
    whole, parts = (build(dnn_of(model, freeze=["norm"])) for _ in range(2))
    parts.load_state(whole.state())
    batch, _, _ = batch_of(make_batch, 9)
    alone = whole.train_alone(batch)
    total, tensors = Sums(), None
    for start, stop in ((0, 2), (2, 2), (2, 9)):
        piece = type(batch)(batch.ids[start:stop], batch.x[start:stop], batch.y[start:stop])
        made: Contribution = parts.compute(piece, 9) if stop > start else parts.zeros()
        total += made.sums
        own = [np.asarray(tensor) for tensor in made.tensors]
        tensors = own if tensors is None else [a + b for a, b in zip(tensors, own, strict=True)]
    assert tensors is not None
    parts.apply(tensors)
    assert parts.metrics(total) == pytest.approx(whole.metrics(alone), abs=1e-9)
    for name, array in whole.weights().items():
        np.testing.assert_allclose(parts.weights()[name], array, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("form", ["tuple", "named", "dict"])
def test_outputs_of_a_module_may_have_any_of_these_forms(make_batch: Make, form: str) -> None:
    batch, _, labels = batch_of(make_batch, 6)
    first, other = (
        of_torch(dnn_of("named_models:torch_pair", args={"form": each})) for each in ("dict", form)
    )
    assert first.metrics(first.evaluate(batch)) == other.metrics(other.evaluate(batch))
    predicted = other.predict(batch)
    assert predicted["kind"].shape == (6, 3)
    measured = other.metrics(other.measure(batch.y, predicted))
    assert measured == pytest.approx(other.metrics(other.evaluate(batch)), abs=1e-9)
    assert len(labels["kind"]) == 6


def test_a_module_may_compute_the_loss_of_all_outputs(make_batch: Make) -> None:
    batch, _, _ = batch_of(make_batch, 6)
    own = {"loss": "module", "loss_weights": None, "metrics": {"kind": ["accuracy"], "price": ["mae"]}}
    replica = of_torch(dnn_of("named_models:torch_pair", args={"form": "own loss"}, **own))
    plain = of_torch(dnn_of("named_models:torch_pair"))
    plain.load_state(replica.state())
    found, expected = (each.metrics(each.evaluate(batch)) for each in (replica, plain))
    assert found == pytest.approx({name: expected[name] for name in ("loss", "kind_accuracy", "price_mae")})
    replica.train_alone(batch)


def test_a_model_may_take_some_of_the_arrays(make_batch: Make) -> None:
    replica = of_keras(dnn_of("named_models:of_table"))
    batch, _, _ = batch_of(make_batch, 5)
    assert replica.train_alone(batch).count == 5


@pytest.mark.parametrize(
    ("build", "given", "message"),
    [
        (of_keras, {"args": {"form": "typo"}}, r"takes the input 'tables' \(did you mean 'table'\?\)"),
        (
            of_keras,
            {"args": {"form": "other output"}},
            r"returns the outputs kind, prize \(did you mean 'price'\?\), allowed: .* kind, price",
        ),
        (of_keras, {"args": {"form": "one output"}}, "allowed: a dict with an output for each label"),
        (of_keras, {"args": {"ending": "softmax"}}, "output kind ends in softmax, allowed: logits"),
        (
            of_keras,
            {"loss": {"kind": None, "prize": "mse"}, "metrics": None, "loss_weights": None},
            r"loss: got the output 'prize' \(did you mean 'price'\?\)",
        ),
        (
            of_keras,
            {"loss": {"kind": None}, "metrics": None, "loss_weights": None},
            "loss: there is none for the output price",
        ),
        (
            of_keras,
            {"loss": None, "metrics": None, "loss_weights": None},
            "loss: there is none for the output kind",
        ),
        (
            of_keras,
            {"loss": {"kind": None, "price": None}, "metrics": None, "loss_weights": None},
            "output price: loss: labels have shape .* which the default loss",
        ),
        (
            of_keras,
            {"loss": {"kind": "mse", "price": "mse"}, "metrics": None},
            "output kind: loss mse: labels are numbers of classes",
        ),
        (
            of_torch,
            {"args": {"form": "typo"}},
            r"forward with the argument 'imag' \(did you mean 'image'\?\), allowed: .* image, table",
        ),
        (
            of_torch,
            {"args": {"form": "by position"}},
            "a forward that takes 'image' by position only, before a /, allowed: arguments with the names of",
        ),
        (of_torch, {"args": {"form": "three"}}, "returns 3 outputs, allowed: 2, one for each label"),
        (of_torch, {"args": {"form": "other output"}}, r"outputs kind, prise \(did you mean 'price'\?\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_meant(
    build: Callable[..., Any], given: dict[str, Any], message: str
) -> None:
    model = "named_models:keras_pair" if build is of_keras else "named_models:torch_pair"
    with pytest.raises(InputError, match=message):
        build(dnn_of(model, **given))


@pytest.mark.parametrize("form", ["dicts", "lists", "prices first", "subclass"])
def test_a_saved_model_has_the_names_of_the_outputs(make_batch: Make, tmp_path: Path, form: str) -> None:
    import tensorflow as tf

    replica = of_keras(dnn_of(args={"form": form}), precision="float32")
    write_model("a", replica, tmp_path / "saved", "tensorflow", SAMPLE, {"kind": None, "price": "mse"})
    batch, arrays, _ = batch_of(make_batch, 5)
    samples = {name: array.astype("float32") for name, array in arrays.items()}
    signature = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    found = signature(**{name: tf.constant(array) for name, array in samples.items()})
    expected = replica.predict(batch)
    assert sorted(found) == ["kind", "price"]
    np.testing.assert_allclose(tf.nn.softmax(found["kind"]), expected["kind"], atol=1e-6)
    np.testing.assert_allclose(found["price"], expected["price"], atol=1e-6)
