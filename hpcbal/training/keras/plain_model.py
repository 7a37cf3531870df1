"""Turn a trained model into one of Keras' own layers, and write it to a file that needs no other package.

Keras stores a layer as the name of its class and its arguments. So a file loads without the code that made
the model if all its layers are Keras' own. Layers of hpcbal become the plain layers that they are in
inference. The `call` of a subclassed model is traced once: the result is a functional model of the layers
that it calls.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from hpcbal.data.spec import UNNAMED, SampleSpec
from hpcbal.errors import InputError
from hpcbal.training.committee import Written, meaning_of
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.keras.model import model_inputs, users_own, users_own_outputs
from hpcbal.training.keras.traced_step import file_errors
from hpcbal.training.user_model import NUM_PROBES, probe_arrays
from hpcbal.user_code import summary

if TYPE_CHECKING:
    from hpcbal.training.keras.tensorflow_replica import TensorFlowReplica

USE_SAVED_MODEL = "export a TensorFlow SavedModel instead, which needs no code: --to DIR"

_PLAIN_LAYER = {"hpcbal>SyncBatchNormalization": "BatchNormalization"}
"""Counterparts of hpcbal's layers in inference, with the same arguments and variables."""

_PROBE_LENGTH = 32
"""Length of samples that differ in length, for a comparison of outputs."""

_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
"""Largest difference of outputs, relative to the largest output; a graph sums in another order."""
_HALF_TOLERANCE = 5e-2


def user_model(replica: TensorFlowReplica) -> keras.Model:
    """Return the user's model, with the weights of this moment."""
    return users_own(replica._model)


def write_model(
    who: str,
    replica: TensorFlowReplica,
    path: Path,
    format_name: str,
    sample: SampleSpec,
    losses: Mapping[str, str | None],
) -> Written:
    """Write a trained model, and check that what was written gives the same outputs.

    Args:
        who: the DNN and its model, for messages.
        replica: with the weights to write.
        path: of the file or directory.
        format_name: `keras` or `tensorflow` (a SavedModel).
        sample: shape of one sample.
        losses: name of the loss of each output, see `meaning_of`.

    Raises:
        InputError: if Keras could not load it.
        OSError: if it cannot be written.
    """
    model, shape = user_model(replica), tuple(sample.shape)
    names = [name for name in replica._objective.by_name if name != UNNAMED]
    modules: list[str] = []
    notes: list[str] = []
    if format_name == "keras":
        model, modules = plain_model(who, model, sample)
        if modules:
            notes.append(f"import {', '.join(modules)} before you load it: layers of it are registered there")
        save_keras(model, path)
    else:
        save_tensorflow(model, path, sample, names)
    given, takes_mask = check_saved(who, user_model(replica), path, sample, names)
    if None in shape and not takes_mask:
        notes.append("all samples of a call must have the same length: it takes no mask of padded ones")
    shapes = {name: tuple(output.shape[1:]) for name, output in given.items()}
    meaning = meaning_of(replica._objective.links, losses)
    return Written(shapes.get(UNNAMED, shapes), meaning, tuple(modules), tuple(notes))


def plain_model(who: str, model: keras.Model, sample: SampleSpec) -> tuple[keras.Model, list[str]]:
    """The same network, with the same weights, as Keras can load it.

    Args:
        who: the DNN and its model, for messages.
        model: built.
        sample: shape of one sample.

    Returns:
        The model, and the modules to import before it can be loaded: those that define layers of the user
        which are registered with Keras.

    Raises:
        InputError: if Keras could not load it.
    """
    if type(model).__module__.partition(".")[0] != "keras":
        model = _traced(who, model, sample)
    try:
        config = keras.saving.serialize_keras_object(model)
    except USER_ERRORS as error:
        reason = summary(error).strip().splitlines()[0]
        raise InputError(
            f"{who} has a layer that cannot be written to a file ({reason}); give it a get_config, or "
            f"{USE_SAVED_MODEL}"
        ) from error
    replaced = [_replace(part) for part in _parts(config)]
    foreign = {name: module for part in _parts(config) for name, module in _foreign(part)}
    refused = sorted(name for name, module in foreign.items() if not module)
    if refused:
        raise InputError(
            f"{who} has parts that Keras cannot load without your code: {', '.join(refused)}; register their "
            f"classes with keras.saving.register_keras_serializable, or {USE_SAVED_MODEL}"
        )
    if any(replaced):
        weights = model.get_weights()
        model = keras.saving.deserialize_keras_object(config)
        if not model.built:
            model.build((None, *sample.shape))
        model.set_weights(weights)
    return model, sorted(set(foreign.values()))


def save_keras(model: keras.Model, path: Path) -> None:
    """Write a `.keras` file.

    Raises:
        OSError: if it cannot be written.
    """
    model.save(path)


def save_tensorflow(model: keras.Model, path: Path, sample: SampleSpec, names: Sequence[str]) -> None:
    """Write a TensorFlow SavedModel, whose function `serve` maps samples to outputs.

    Args:
        model: built.
        path: of the directory.
        sample: shape of one sample.
        names: of the outputs, which `serve` returns in a dict; none: it returns what the model returns.

    Raises:
        OSError: if it cannot be written.
    """
    signature = [
        model_inputs(
            model,
            {
                name: keras.InputSpec(
                    shape=(None, *spec.shape), dtype=keras.config.floatx(), name=name or None
                )
                for name, spec in sample.by_name.items()
            },
        )
    ]
    archive = keras.export.ExportArchive()
    with file_errors():
        if names:  # a graph knows the outputs in a list by number only
            archive.track(model)
            archive.add_endpoint(
                "serve",
                lambda samples: users_own_outputs(model, model(samples, training=False), names),
                input_signature=signature,
            )
        else:
            archive.track_and_add_endpoint("serve", model, signature)
        archive.write_out(path, verbose=False)


def check_saved(
    who: str, model: keras.Model, path: Path, sample: SampleSpec, names: Sequence[str] = ()
) -> tuple[dict[str, Any], bool]:
    """Load a file or directory that was written, and compare its outputs with those of the model.

    Args:
        who: the DNN and its model, for messages.
        model: the one that was written.
        path: of the file or directory.
        sample: shape of one sample.
        names: of the outputs; none: they have none.

    Returns: outputs of the model for a few samples, by name, and whether what was written takes the mask of
        padded samples as the model does.

    Raises:
        InputError: if it cannot be loaded, or gives other outputs.
    """
    shape, dtype = tuple(sample.shape), keras.config.floatx()
    lengths = [_PROBE_LENGTH if length is None else length for length in shape]
    arrays = {name: array.astype(dtype) for name, array in probe_arrays(sample, _PROBE_LENGTH).items()}
    given = model_inputs(model, arrays)
    probes = arrays.get(UNNAMED, np.zeros(0))
    returned = users_own_outputs(model, model(given, training=False), names)
    wanted = [
        np.asarray(keras.ops.cast(each, "float64")) for each in keras.tree.flatten([*returned.values()])
    ]
    try:
        load = _load(path, dtype)
        outputs = users_own_outputs(model, load(given), names)
    except USER_ERRORS as error:
        what = f"{who} was written, but cannot be loaded again: {summary(error)}"
        raise InputError(f"{what}; {USE_SAVED_MODEL}" if path.is_file() else what) from error
    found = [np.asarray(keras.ops.cast(each, "float64")) for each in keras.tree.flatten([*outputs.values()])]
    policy = keras.backend.standardize_dtype(model.compute_dtype)
    largest = max(float(np.abs(each).max()) for each in wanted)
    tolerance = _TOLERANCE.get(policy, _HALF_TOLERANCE) * max(1.0, largest)
    if [each.shape for each in found] != [each.shape for each in wanted] or not all(
        np.allclose(one, other, rtol=0.0, atol=tolerance) for one, other in zip(found, wanted, strict=True)
    ):
        raise InputError(
            f"{who} gives other outputs once it is written and loaded again; a layer seems to lack a "
            f"part of its get_config{f', or {USE_SAVED_MODEL}' if path.is_file() else ''}"
        )
    takes_mask = None in shape and path.is_file()
    if takes_mask:
        mask = np.ones(
            (NUM_PROBES, *(n for n, given in zip(lengths, shape, strict=True) if given is None)), bool
        )
        mask[0, _PROBE_LENGTH // 2 :] = False
        padded = np.where(mask.reshape(mask.shape + (1,) * (probes.ndim - mask.ndim)), probes, 0.0)
        try:
            with warnings.catch_warnings():  # of layers after which there is no mask
                warnings.simplefilter("ignore")
                own, other = model(padded, mask=mask, training=False), load(padded, mask)
        except USER_ERRORS:
            takes_mask = False
        else:
            difference = keras.ops.cast(own, "float64") - keras.ops.cast(other, "float64")
            takes_mask = float(np.abs(np.asarray(difference)).max()) <= tolerance
    return returned, takes_mask


def _load(path: Path, dtype: str) -> Any:
    if path.is_file():
        loaded = keras.saving.load_model(path)
        return lambda samples, mask=None: loaded(samples, mask=mask, training=False)
    return keras.layers.TFSMLayer(path, call_endpoint="serve", dtype=dtype)


def _traced(who: str, model: keras.Model, sample: SampleSpec) -> keras.Model:
    """The functional model of what `call` of a subclassed model does in inference."""
    known = inspect.signature(model.call).parameters
    arguments = {"training": False} if "training" in known else {}
    every = {
        name: keras.Input(tuple(spec.shape), dtype=keras.config.floatx(), name=name or "samples")
        for name, spec in sample.by_name.items()
    }
    inputs = every.get(UNNAMED, every)
    try:
        return keras.Model(inputs, model.call(inputs, **arguments), name=model.name)
    except USER_ERRORS as error:
        reason = summary(error).strip().splitlines()[0]
        raise InputError(
            f"{who} cannot be written as layers of Keras, because its call does more than call them "
            f"({reason}); use keras.layers and keras.ops in it, or {USE_SAVED_MODEL}"
        ) from error


def _parts(config: Any) -> Iterator[dict[str, Any]]:
    """All objects within a serialized model, itself included."""
    if isinstance(config, dict):
        if "class_name" in config and "config" in config:
            yield config
        for value in config.values():
            yield from _parts(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _parts(value)


def _replace(part: dict[str, Any]) -> bool:
    """Replace a layer of hpcbal by the plain one, in place; return whether it was one."""
    plain = _PLAIN_LAYER.get(part.get("registered_name") or "")
    if plain is None:
        return False
    part.update(module="keras.layers", class_name=plain, registered_name=None)
    return True


def _foreign(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The name of a part that is not Keras' own, and the module that registers it; "" if none does."""
    module, registered = part.get("module"), str(part.get("registered_name") or "")
    name = str(part["class_name"])
    if name == "Lambda":
        yield "a Lambda layer", ""
    elif name == "function":
        yield f"the function {part['config']}", _module_of(registered)
    elif ">" in registered or (module and module.partition(".")[0] not in ("keras", "builtins")):
        yield name, _module_of(registered)


def _module_of(registered: str) -> str:
    """The module of a class or function of the user that is registered with Keras."""
    found = keras.saving.get_registered_object(registered)
    if found is None or not str(registered).partition(">")[2] or found.__module__.startswith("hpcbal."):
        return ""
    return str(found.__module__)
