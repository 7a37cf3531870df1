"""Frozen layers stay as they are, and cost neither gradients nor optimizer state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from hpcbal.checkpoint.weights import read_keras_file
from hpcbal.errors import InputError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.initial_weights import SourceLayer, initial_weights
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend, TensorFlowReplica
from hpcbal.training.step import train_step

Make = Callable[..., Any]


def nested(shape: tuple[int, ...], num_classes: int, width: int = 4, sync: bool = False) -> keras.Model:
    from hpcbal.models.sync_batch_norm import SyncBatchNormalization

    norm = SyncBatchNormalization if sync else keras.layers.BatchNormalization
    backbone = keras.Sequential(
        [keras.layers.Flatten(), keras.layers.Dense(width, name="stem"), norm(momentum=0.5, name="norm")],
        name="backbone",
    )
    inputs = keras.Input(shape)
    x = keras.layers.Dropout(0.2)(backbone(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="head")(x))


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Callable[..., TensorFlowReplica]:
    backend = TensorFlowBackend(precision="float64")

    def make(*freeze: str, **args: Any) -> TensorFlowReplica:
        dnn = make_dnn(model=f"{__name__}:nested", freeze=freeze, **args)
        return backend.build(dnn, make_spec(), 5, 0)

    return make


def test_frozen_layers_stay_and_the_others_train(build: Make, make_batch: Make) -> None:
    replica = build("backbone")
    before = replica.state()
    for step in range(3):
        train_step(replica, make_batch(6, step), 6, LocalCollective())
    after = replica.state()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    weights = {name for name in changed if name.startswith("weights/") and "seed" not in name}
    assert weights == {"weights/head/kernel", "weights/head/bias"}
    optimizer = [name for name in after if name.startswith("optimizer/")]
    assert not [name for name in optimizer if "stem" in name or "norm" in name]


@pytest.mark.parametrize("sync", [False, True])
def test_a_group_sends_nothing_for_frozen_layers(build: Make, make_batch: Make, sync: bool) -> None:
    replica = build("backbone", sync=sync)
    contribution = replica.compute(make_batch(6), 6)
    assert sorted(tuple(tensor.shape) for tensor in contribution.tensors) == [(4, 5), (5,)]
    assert [tensor.shape for tensor in replica.zeros().tensors] == [t.shape for t in contribution.tensors]
    assert replica.exchange is None  # so the ranks do not meet within a step
    assert replica.num_parameters == 25
    assert (build(sync=sync).exchange is not None) == sync


def test_frozen_batch_norm_is_in_inference_mode(build: Make, make_batch: Make) -> None:
    """As in Keras: a step of a Keras twin with the same frozen layers changes the weights equally."""
    replica, batch = build("norm"), make_batch(6)
    state = replica.state()
    state["weights/backbone/norm/moving_mean"] += 0.7
    replica.load_state(state)
    twin = keras.models.clone_model(replica._model.model)
    twin.get_layer("backbone").get_layer("norm").trainable = False
    twin.get_layer("dropout").rate = 0.0
    replica._model.model.get_layer("dropout").rate = 0.0
    for ours, theirs in zip(replica._model.model.variables, twin.variables, strict=True):
        theirs.assign(ours)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    twin.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    train_step(replica, batch, 6, LocalCollective())
    twin.train_on_batch(batch.x, batch.y)
    for ours, theirs in zip(replica._model.model.weights, twin.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12, err_msg=ours.path)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("stm", r"freeze: got 'stm' \(did you mean 'stem'\?\), allowed: a layer of the model: backbone, "),
        ("flatten", "freeze: got 'flatten'.*, allowed: a layer of the model"),
        ("*", r"freeze: \['\*'\] freezes all layers"),
    ],
)
def test_wrong_patterns_are_refused(build: Make, pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(pattern)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_files_of_keras_hold_the_weights_of_each_layer(build: Make, tmp_path: Path, ending: str) -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    model, path = nested((6, 6, 1), 5), tmp_path / f"model{ending}"
    (model.save if ending == ".keras" else model.save_weights)(path)
    replica = build()
    source = [SourceLayer(name, arrays) for name, arrays in read_keras_file(path)]
    found = initial_weights(replica.layers(), replica.state(), source)
    assert found.layers == ("backbone/stem", "backbone/norm", "head")
    replica.load_state({**replica.state(), **found.arrays})
    for ours, theirs in zip(replica._model.model.weights, model.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("model.keras", "model.weights.h5"):
        path = tmp_path / name
        with pytest.raises(InputError, match=f"{name}: there is no such file"):
            read_keras_file(path)
        path.write_bytes(b"no such format")
        with pytest.raises(InputError, match=f"{name}: it is not a whole file of Keras 3"):
            read_keras_file(path)
