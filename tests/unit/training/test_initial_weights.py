"""Start from saved weights, and freeze layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from hpcbal.checkpoint import TrainingState, write_checkpoint
from hpcbal.config.schema.initial import InitConfig
from hpcbal.errors import InputError
from hpcbal.training.tensorflow_backend import TensorFlowBackend
from hpcbal.values import Position

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_models_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "programs"))


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(num_classes: int = 5, model: str = "own_models:named", **given: Any) -> Any:
        dnn = make_dnn(model=model, **given)
        return TensorFlowBackend().build(dnn, make_spec(dtype="float32"), num_classes, 0)

    return make


def weights(replica: Any) -> dict[str, np.ndarray]:
    return {name.split("/", 2)[2]: array for name, array in replica.weights().items()}


@pytest.fixture
def saved(build: Make, make_batch: Make, tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A trained model in all three forms."""
    replica = build(seed=7)
    for seed in range(3):
        replica.train_alone(make_batch(8, seed, dtype="float32"))
    model = replica._model.model
    model.save(tmp_path / "net.keras")
    model.save_weights(tmp_path / "net.weights.h5")
    directory = tmp_path / "run" / "dnns" / "other"
    directory.mkdir(parents=True)
    write_checkpoint(directory, TrainingState("other", 3, Position(3), arrays=replica.state()))
    return tmp_path, weights(replica)


def init_of(folder: Path, kind: str, **given: Any) -> InitConfig:
    if kind == "run":
        return InitConfig(run=str(folder / "run"), dnn="other", **given)
    return InitConfig(file=str(folder / f"net.{kind}"), **given)


@pytest.mark.parametrize("kind", ["keras", "weights.h5", "run"])
def test_a_dnn_starts_from_saved_weights(build: Make, saved: Any, kind: str) -> None:
    folder, wanted = saved
    found = weights(build(init=init_of(folder, kind)))
    assert list(found) == list(wanted)
    for path, array in wanted.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)


@pytest.mark.parametrize("kind", ["keras", "run"])
def test_another_head_takes_the_other_layers(build: Make, saved: Any, kind: str) -> None:
    folder, wanted = saved
    plain = weights(build(3))
    found = weights(build(3, init=init_of(folder, kind, layers=("body*", "norm"))))
    for path, array in found.items():
        expected = plain[path] if path.startswith("head") else wanted[path]
        np.testing.assert_array_equal(array, expected, err_msg=path)


@pytest.mark.parametrize("kind", ["keras", "weights.h5", "run"])
def test_what_does_not_fit_is_refused(build: Make, saved: Any, kind: str) -> None:
    folder, _ = saved
    with pytest.raises(InputError, match=r"head/kernel has shape \(7, 5\)|does not fit the model"):
        build(3, init=init_of(folder, kind))


def test_what_is_not_there_is_named(build: Make, saved: Any, tmp_path: Path) -> None:
    folder, _ = saved
    (tmp_path / "broken.keras").write_bytes(b"nothing")
    for init, message in (
        (InitConfig(file=str(tmp_path / "none.keras")), "no such file"),
        (InitConfig(file=str(tmp_path / "broken.keras")), "cannot be read"),
        (InitConfig(run=str(folder / "run"), dnn="nix"), "has no DNN 'nix', allowed: other"),
        (InitConfig(run=str(tmp_path / "no-run")), "has no DNN 'dnn', allowed: the output directory"),
        (init_of(folder, "run", weights="best"), "best"),
        (
            init_of(folder, "keras", layers=("conv*",)),
            "layers: 'conv.' matches no layer with weights, allowed",
        ),
    ):
        with pytest.raises(InputError, match=message):
            build(init=init)


@pytest.mark.parametrize("alone", [True, False])
def test_frozen_layers_stay_and_normalise_as_in_inference(build: Make, make_batch: Make, alone: bool) -> None:
    replica = build(freeze=("body*", "norm"))
    before = replica.state()
    batch = make_batch(8, dtype="float32")
    for _ in range(3):
        if alone:
            replica.train_alone(batch)
        else:
            contribution = replica.compute(batch, 8)
            assert [tuple(t.shape) for t in contribution.tensors] == [(7, 5), (5,)], "only the head travels"
            replica.apply(contribution.tensors)
    after = replica.state()
    for name, array in before.items():
        if name.startswith("weights/"):
            is_head = "/head/" in name
            assert np.array_equal(after[name], array) != is_head, name
    assert not any("body" in name for name in after if name.startswith("optimizer/"))
    assert replica.num_parameters == 7 * 5 + 5


def test_a_pattern_that_freezes_nothing_is_refused(build: Make) -> None:
    with pytest.raises(InputError, match=r"freeze: 'conv.' matches no layer, allowed: .*body, norm, head"):
        build(freeze=("conv*",))
    with pytest.raises(InputError, match="no weights to train"):
        build(freeze=("*",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither file and run"),
        ({"file": "a.keras", "run": "b"}, "both file and run"),
        ({"file": "a.h5"}, "ends in .keras or .weights.h5"),
        ({"file": "a.keras", "dnn": "b"}, "allowed with file: leave it out"),
        ({"file": "a.weights.h5", "layers": ["b"]}, "use a .keras file"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InitConfig(**given)


def test_a_frozen_model_trains_like_keras_own(build: Make, make_batch: Make) -> None:
    replica = build(freeze=("body",), learning_rate=0.1)
    twin = keras.models.clone_model(replica._model.model)
    twin.get_layer("body").trainable = False
    twin.set_weights(replica._model.get_weights())
    twin.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(True))
    for seed in range(3):
        batch = make_batch(8, seed, dtype="float32")
        twin.train_on_batch(batch.x, batch.y)
        replica.train_alone(batch)
    for ours, theirs in zip(replica._model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
