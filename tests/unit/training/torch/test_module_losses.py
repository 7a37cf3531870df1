"""A module that computes its losses itself trains as by any other loss; what they are is checked before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcbal.config import load_config
from hpcbal.config.schema.objective import LossConfig, MetricConfig, predicted_by
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import ConfigError, InputError, UserCodeError
from hpcbal.training.collective import LocalCollective
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]
MODULE, ACCURACY = LossConfig(name="module"), (MetricConfig(name="accuracy"),)


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(model: str, precision: str = "float64", sample_weights: Any = None, **given: Any) -> Any:
        dnn = make_dnn(model=f"torch_losses:{model}", **given)
        dtype = "float64" if precision == "float64" else "float32"
        backend = TorchBackend(precision=precision)
        return backend.build(dnn, make_spec(dtype=dtype), 5, 0, sample_weights=sample_weights)

    return make


def cut(batch: Any, start: int, stop: int) -> Any:
    return type(batch)(batch.ids[start:stop], batch.x[start:stop], batch.y[start:stop])


@pytest.mark.parametrize("pair", [False, True])
def test_the_same_loss_gives_the_same_weights_and_metrics(build: Make, make_batch: Make, pair: bool) -> None:
    """With weights of classes and samples; alone, and with the shares of three ranks."""
    given = {"class_weights": {1: 3.0, 4: 0.5}, "sample_weights": np.linspace(0.5, 2.0, 9)}
    default = build("cross_entropy", **given)
    own, split = (build("cross_entropy", loss=MODULE, metrics=ACCURACY, pair=pair, **given) for _ in range(2))
    for step in range(3):
        batch = make_batch(9, step)
        wanted = train_step(default, batch, 9, LocalCollective()).sums
        found = train_step(own, batch, 9, LocalCollective()).sums
        assert found.loss == pytest.approx(wanted.loss, rel=1e-12)
        np.testing.assert_array_equal(found.states, wanted.states)
        parts = [split.compute(cut(batch, a, b), 9).tensors for a, b in ((0, 1), (1, 3), (3, 9))]
        split.apply([sum(tensor) for tensor in zip(*parts, strict=True)])
    for name, array in default.weights().items():
        for other in (own, split):
            np.testing.assert_allclose(other.weights()[name], array, rtol=1e-11, atol=1e-12, err_msg=name)
    ours, theirs = own.evaluate(make_batch(7, 5)), default.evaluate(make_batch(7, 5))
    assert own.metrics(ours) == pytest.approx(default.metrics(theirs), rel=1e-9)
    np.testing.assert_allclose(own.predict(batch), default.predict(batch), atol=1e-9)


def test_only_metrics_of_classes_make_probabilities_of_outputs(build: Make, make_batch: Make) -> None:
    """As `evaluate`, ensembles and exports take them; outputs that are no logits stay as they are."""
    batch = make_batch(6)
    for model, metrics, link in (
        ("cross_entropy", ACCURACY, "softmax"),
        ("cross_entropy", (MetricConfig(name="sparse_categorical_accuracy"),), "softmax"),
        ("cross_entropy", None, "identity"),
        ("probabilities", ACCURACY, "identity"),
        ("of_yes", ACCURACY, "identity"),
    ):
        replica = build(model, loss=MODULE, metrics=metrics)
        assert replica.objective.links == {"": link}, (model, metrics)
        with torch.no_grad():
            outputs = replica.module.eval()(replica.inputs.tensors(batch).x)
        wanted = outputs.softmax(-1) if link == "softmax" else outputs
        np.testing.assert_allclose(replica.predict(batch), wanted, atol=1e-12)
        assert (predicted_by(replica._dnn) == "classes") == (metrics is not None)


@pytest.mark.parametrize(
    ("given", "calls"), [({}, 1), ({"metrics": ACCURACY}, 2), ({"metrics": ACCURACY, "pair": True}, 1)]
)
def test_a_step_calls_the_module_no_more_than_it_must(
    build: Make, make_batch: Make, given: Any, calls: int
) -> None:
    replica = build("cross_entropy", loss=MODULE, **given)
    before = replica.module.calls
    train_step(replica, make_batch(4), 4, LocalCollective())
    assert replica.module.calls == before + calls
    assert replica.num_states == (1 if given.get("metrics") else 0)


def test_a_random_loss_is_repeatable_and_keeps_its_statistics(build: Make, make_batch: Make) -> None:
    first, second, batch = build("denoiser", loss=MODULE), build("denoiser", loss=MODULE), make_batch(6)
    for replica in (first, second):
        torch.rand(3)
        for _ in range(2):
            train_step(replica, batch, 6, LocalCollective())
    assert first.evaluate(batch) == second.evaluate(batch)
    for name, array in first.state().items():
        np.testing.assert_array_equal(array, second.state()[name], err_msg=name)
    assert first.weights()["weights/norm.running_mean"].any()
    assert np.isnan(first.measure(batch.y, first.predict(batch)).loss)


def test_series_come_with_mask_and_lengths(make_dnn: Make, make_spec: Make, make_batch: Make) -> None:
    spec, label = make_spec(shape=(None, 3)), LabelSpec((), "float64")
    dnn = make_dnn(model="torch_losses:of_series", loss=MODULE, learning_rate=0.01)
    replica = TorchBackend(precision="float64").build(dnn, spec, 1, 0, label=label)
    series = [np.ones((length, 3)) for length in (5, 40, 17)]
    batch = type(make_batch(1))(np.arange(3), series, np.array([1.0, 1.0, 1.0]))
    losses = [train_step(replica, batch, 3, LocalCollective()).sums.loss for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_loss_in_16_bits(build: Make, make_batch: Make) -> None:
    replica = build("cross_entropy", precision="mixed_bfloat16", loss=MODULE, metrics=ACCURACY)
    sums = [train_step(replica, make_batch(8, dtype="float32"), 8, LocalCollective()).sums for _ in range(20)]
    assert sums[-1].loss < sums[0].loss


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("a_mean", r"loss\(batch\) returned one number for a batch, allowed: .* leave out \.mean\(\)"),
        ("of_classes", r"loss\(batch\) returned shape \(3, 5\) for 3 samples, allowed: \(3,\)"),
        ("a_list", r"loss\(batch\) returned a list, allowed: a tensor"),
        ("of_nan", r"loss\(batch\) returns NaN or infinity for samples of zeros and ones"),
        ("without_gradient", r"returns losses that do not depend on a weight to train"),
        ("of_argmax", r"returns losses that do not depend on a weight to train"),
        ("mixing", r"the loss of a sample depends on the other samples of the batch"),
        ("in_place", r"changes its samples in place, allowed: leave them"),
        ("labels_in_place", r"loss\(batch\) changes labels in place, allowed: leave them"),
        ("odd_pair", r"returned losses and outputs of shape \(3, 2\), allowed: those of forward"),
    ],
)
def test_what_is_no_loss_of_samples_is_refused(build: Make, kind: str, words: str) -> None:
    with pytest.raises(InputError, match=f"DNN dnn: model torch_losses:wrong.*{words}") as caught:
        build("wrong", loss=MODULE, kind=kind)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_method_names_its_line(build: Make) -> None:
    with pytest.raises(UserCodeError, match=r"its loss of 3 samples failed: .*torch_losses\.py:\d+: Attr"):
        build("wrong", loss=MODULE, kind="failing")


def test_a_loss_that_changes_its_shape_later_fails_the_step(build: Make, make_batch: Make) -> None:
    replica = build("cross_entropy", loss=MODULE)
    replica.module.loss = lambda batch: replica.module(batch.x).mean()
    with pytest.raises(InputError, match="returned one number for a batch"):
        replica.compute(make_batch(4), 4)


def test_labels_that_other_dnns_read_are_not_changed_in_a_step(build: Make, make_batch: Make) -> None:
    replica, batch = build("cross_entropy", loss=MODULE), make_batch(4)
    loss = replica.module.loss
    replica.module.loss = lambda batch: loss(batch) * batch.y.clamp_(0, 1)
    with pytest.raises(UserCodeError, match="changed labels in place, which other DNNs read"):
        replica.compute(batch, 4)


def test_the_method_must_be_there_and_is_not_taken_unasked(build: Make, make_dnn: Make) -> None:
    with pytest.raises(
        InputError, match=r"has no method loss, its loss is a CrossEntropyLoss, which 'loss: m"
    ):
        build("an_attribute", loss=MODULE)
    with pytest.raises(InputError, match=r"label_smoothing: got 0\.1 with loss module, allowed: 0"):
        build("cross_entropy", loss=MODULE, label_smoothing=0.1)
    (warning,) = build("cross_entropy").warnings
    assert "it has a method loss, which is used only with 'loss: module'" in warning
    assert not build("an_attribute").warnings


@pytest.mark.parametrize(
    ("dnn", "problem"),
    [
        ("model: 'hpcbal.models:mlp', loss: module", "loss: got 'module', allowed for a Keras model: a loss"),
        (
            "model: 'hpcbal.models.torch:mlp', loss: {name: module}, framework: tensorflow",
            "loss.name: got 'module', allowed for a Keras model: a loss",
        ),
        ("model: 'm:f', loss: {name: module, args: {a: 1}}", "loss.args: got arguments, allowed with module"),
        (
            "model: 'm:f', loss: modules",
            "loss.name: got 'modules' (did you mean 'module'?), allowed: null, spars",
        ),
    ],
)
def test_validate_knows_who_has_such_a_loss(tmp_path: Path, dnn: str, problem: str) -> None:
    path = tmp_path / "run.yaml"
    rest = "optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 1}"
    path.write_text(f"dnns: [{{name: a, {dnn}, {rest}}}]\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    assert any(problem in line for line in caught.value.problems), caught.value.problems
    right = (
        dnn.split(",")[0].replace("models:mlp", "models.torch:mlp").replace("m:f", "hpcbal.models.torch:mlp")
    )
    path.write_text(f"dnns: [{{name: a, {right}, loss: module, {rest}}}]\n", encoding="utf-8")
    assert load_config(path, check_imports=True).dnns[0].stop.watched == "val_loss"
