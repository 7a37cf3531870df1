"""Write an ensemble of Keras models as one model of Keras' own layers, or as a SavedModel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import keras
import numpy as np

from hpcbal.data.spec import SampleSpec
from hpcbal.errors import InputError
from hpcbal.training.committee import Committee, Member, WrittenCommittee, times_as_long
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.keras.plain_model import USE_SAVED_MODEL, plain_model, save_keras, user_model
from hpcbal.training.keras.traced_step import file_errors
from hpcbal.training.weights import Array
from hpcbal.user_code import summary

if TYPE_CHECKING:
    from hpcbal.training.keras.tensorflow_replica import TensorFlowReplica


def write_committee(
    committee: Committee, path: Path, format_name: str, samples: Array, wanted: Array
) -> WrittenCommittee:
    """Write an ensemble, and check that what was written predicts as its members do.

    Args:
        committee: of Keras models.
        path: of the file or directory.
        format_name: `keras` or `tensorflow` (a SavedModel).
        samples: as the model takes them, shape (n, *sample shape).
        wanted: the weighted mean of what the members predict for them, shape (n, ...).

    Raises:
        InputError: if Keras could not load it, or it predicts something else.
        OSError: if it cannot be written.
    """
    modules: list[str] = []
    if format_name == "keras":
        model, modules = _model_of(committee)
        save_keras(model, path)
    else:
        _save_tensorflow(committee, path)
    who = "the ensemble"
    try:
        if format_name == "keras":
            loaded = keras.saving.load_model(path)
            call = loaded.predict_on_batch
        else:
            layer = keras.layers.TFSMLayer(path, call_endpoint="serve", dtype=committee.input_dtype)
            call = lambda given: np.asarray(layer(given))  # noqa: E731
        found = np.asarray(call(samples), np.float64)
    except USER_ERRORS as error:
        what = f"{who} was written, but cannot be loaded again: {summary(error)}"
        raise InputError(f"{what}; {USE_SAVED_MODEL}" if format_name == "keras" else what) from error
    alone = _own(committee.members[committee.best])
    own_samples = samples.astype(committee.dtype)
    cost = times_as_long(lambda: call(samples), lambda: alone.predict_on_batch(own_samples))
    notes = []
    if modules:
        notes.append(f"import {', '.join(modules)} before you load it: layers of it are registered there")
    return WrittenCommittee(
        found.shape[1:], committee.difference(who, found, wanted), cost, tuple(modules), tuple(notes)
    )


def plain_member(member: Member, shape: tuple[int, ...], dtype: str) -> tuple[keras.Model, list[str]]:
    """Return the member as `plain_model` does."""
    return plain_model(member.who, _own(member), SampleSpec.of(shape, dtype))


def _own(member: Member) -> keras.Model:
    return user_model(cast("TensorFlowReplica", member.replica))


def _model_of(committee: Committee) -> tuple[keras.Model, list[str]]:
    """Build a functional model of plain layers, and list the modules that must be imported to load it."""
    modules: set[str] = set()
    inputs = keras.Input(committee.shape, dtype=committee.input_dtype, name="samples")
    samples: Any = inputs
    for affine in committee.affines:
        factor, shift = np.asarray(affine.factor), np.asarray(affine.shift)
        scaling = keras.layers.Rescaling(factor.tolist(), (-shift).tolist(), dtype=affine.dtype)
        samples = scaling(samples)
    parts = []
    for number, member in enumerate(committee.members):
        model, needed = plain_member(member, committee.shape, committee.dtype)
        modules.update(needed)
        outputs = _renamed(model, f"member_{number}")(samples)
        if committee.link == "softmax":
            outputs = keras.layers.Softmax(dtype=committee.dtype)(outputs)
        elif committee.link == "sigmoid":
            outputs = keras.layers.Activation("sigmoid", dtype=committee.dtype)(outputs)
        parts.append(keras.layers.Rescaling(member.share, dtype=committee.dtype)(outputs))
    mean = parts[0] if len(parts) == 1 else keras.layers.Add(dtype=committee.dtype)(parts)
    return keras.Model(inputs, mean, name="ensemble"), sorted(modules)


def _renamed(model: keras.Model, name: str) -> keras.Model:
    """Return a copy with another name: within a model, all layers differ by name."""
    config = keras.saving.serialize_keras_object(model)
    config["config"]["name"] = name
    copy = keras.saving.deserialize_keras_object(config)
    if not copy.built:
        copy.build(model.input_shape)
    copy.set_weights(model.get_weights())
    return copy


def _save_tensorflow(committee: Committee, path: Path) -> None:
    """Write a SavedModel, whose function `serve` maps samples to predictions; it needs no code of layers."""
    models = [_own(member) for member in committee.members]
    shares = [member.share for member in committee.members]

    def serve(samples: Any) -> Any:
        for affine in committee.affines:
            factor, shift = (np.asarray(each, affine.dtype) for each in (affine.factor, affine.shift))
            samples = keras.ops.cast(samples, affine.dtype) * factor - shift
        samples = keras.ops.cast(samples, committee.dtype)
        total = 0.0
        for model, share in zip(models, shares, strict=True):
            outputs = keras.ops.cast(model(samples, training=False), committee.dtype)
            if committee.link == "softmax":
                outputs = keras.ops.softmax(outputs)
            elif committee.link == "sigmoid":
                outputs = keras.ops.sigmoid(outputs)
            total += share * outputs
        return total

    archive = keras.export.ExportArchive()
    for model in models:
        archive.track(model)
    signature = [keras.InputSpec(shape=(None, *committee.shape), dtype=committee.input_dtype, name="samples")]
    with file_errors():
        archive.add_endpoint("serve", serve, input_signature=signature)
        archive.write_out(path, verbose=False)
