"""Check that a user's Keras model can be trained, by its layers, outputs and weights.

What the structure of a model shows is read from it. Otherwise, as for subclassed models, the model is called
on a few samples.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.keras.objective import KerasObjective
from hpcbal.training.objective import Objective, Probe
from hpcbal.training.user_model import (
    NUM_PROBES,
    PROBE_LENGTHS,
    SUM_TOLERANCE,
    probe_labels,
    probe_samples,
    user_errors,
)
from hpcbal.training.weights import Array

_SQUASHING = ("softmax", "sigmoid")
_FOR_LOGITS = ("linear", "log_softmax")
"""Activations after which a softmax loss trains as it should."""
_WITH_ACTIVATION = ("Activation", "Conv1D", "Conv2D", "Conv3D", "Dense", "EinsumDense")
_UNCHANGING = ("Activation", "Dropout", "Flatten", "Identity", "Reshape")

IGNORES_MASK = re.compile(r"Layer '(?P<name>.*)' \(of type (?P<kind>.*)\) was passed an input with a mask")
"""How Keras warns."""


class TrainedModel(keras.Model):
    """Calls a user's model as Keras' own training does; has the same variables, in the same order.

    A stateless call skips the part of Keras that makes `training` known to layers inside layers: dropout and
    batch normalisation would be in inference mode wherever a user's `call` does not pass `training` on. A
    model whose `call` takes no `training` at all is called by a layer that does.

    Samples of unequal size are padded, and the mask of what is real goes to the model as its argument `mask`,
    as Keras passes masks between layers.

    Args:
        model: built.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name=f"{model.name}_trained")
        self.model = model if model._call_has_training_arg else _TakesTraining(model)
        self.built = True
        # Otherwise Keras warns that no mask leaves the model, which is right: its outputs are logits.
        self.supports_masking = self.model.supports_masking = model.supports_masking = True

    def call(self, x: Any, mask: Any = None, training: bool = False) -> Any:
        masked = {} if mask is None else {"mask": mask}
        outputs = self.model(x, training=training, **masked)
        # With mixed precision a last layer may compute in 16 bits; losses and metrics do not.
        return keras.ops.cast(outputs, keras.config.floatx()) if keras.ops.is_tensor(outputs) else outputs


class _TakesTraining(keras.Model):
    def __init__(self, model: keras.Model) -> None:
        super().__init__(name=f"{model.name}_takes_training")
        self.model = model
        self.built = True

    def call(self, x: Any, mask: Any = None, training: bool = False) -> Any:
        return self.model(x) if mask is None else self.model(x, mask=mask)


def users_own(model: TrainedModel) -> keras.Model:
    """The model that the user's callable returned."""
    own = model.model
    return own.model if isinstance(own, _TakesTraining) else own


def checked(
    dnn: DnnConfig,
    model: Any,
    sample: SampleSpec,
    num_classes: int,
    label: LabelSpec = CLASS_LABEL,
    precision: str = "",
) -> tuple[TrainedModel, Objective, list[str]]:
    """Build the model for samples of this shape, if it is not built yet, and check what it returns.

    Args:
        dnn: for messages.
        model: what the user's callable returned.
        sample: shape of one sample; None where samples differ in length.
        num_classes: number of logits, with the default loss.
        label: shape and type of one label.
        precision: of the arithmetic; with a mixed one, outputs may have 16 bits.

    Returns:
        The model to train, which calls the user's; its loss and metrics; and what is probably a mistake in
        it, as sentences.

    Raises:
        InputError: if it is not a Keras model, takes other inputs, has nothing to train, or returns what its
            loss does not take: by default, anything but the logits of `num_classes` classes.
        UserCodeError: if it cannot be built or called.
    """
    who = f"DNN {dnn.name}: model {dnn.model}"
    if not isinstance(model, keras.Model):
        lacks = " (does the function lack a return?)" if model is None else ""
        is_torch = any(base.__module__.startswith("torch.") for base in type(model).__mro__)
        advice = "; set framework: torch for it" if is_torch else ""
        raise InputError(f"{who} returned {type(model).__name__}{lacks}, allowed: keras.Model{advice}")
    short, long = PROBE_LENGTHS
    try:
        objective, found = _check(dnn, who, model, tuple(sample.shape), num_classes, label, precision, short)
    except UserCodeError:
        if None not in sample.shape:
            raise
        objective, found = _check(dnn, who, model, tuple(sample.shape), num_classes, label, precision, long)
    return TrainedModel(model), objective, [*_unused(model), *found]


def _check(
    dnn: DnnConfig,
    who: str,
    model: keras.Model,
    shape: tuple[int | None, ...],
    num_classes: int,
    label: LabelSpec,
    precision: str,
    length: int,
) -> tuple[Objective, list[str]]:
    """The same on samples of this length, where samples differ in length; returns warnings."""
    warned: list[str] = []
    takes_logits = dnn.loss is None
    if _is_of_keras(model):  # its structure is all that it does
        if not model.built:
            with user_errors(dnn, f"building it for samples of shape {shape}"):
                model.build((None, *shape))
        _check_inputs(who, model, shape)
        given = model.compute_output_shape((None, *shape))
        if not isinstance(given, tuple) or any(isinstance(n, tuple) for n in given):
            raise InputError(_not_one_tensor(who, given, num_classes if takes_logits else None))
        if takes_logits:
            _check_output(who, given, (None, num_classes))
        _check_type(who, model.outputs[0].dtype, precision)
        ending = _ending(model.outputs[0])
    else:
        ending = None
    objective = KerasObjective(dnn, label, num_classes, ending)
    if takes_logits and ending in _SQUASHING:
        raise InputError(_not_logits(who, f"ends in {ending}"))
    if takes_logits and ending not in (*_FOR_LOGITS, None):
        warned.append(
            f"it ends in {ending}, but the loss takes logits, which may be any numbers, so it may not learn; "
            "remove the activation of the last layer: Dense(num_classes)"
        )
    if ending != "linear" or not takes_logits or dnn.metrics:
        probes = _probes(shape, length)
        try:
            with user_errors(dnn, f"calling it on {NUM_PROBES} samples of shape {shape}"):
                if not all(layer.built for layer in model._flatten_layers()):
                    model(probes)
                outputs = _call(TrainedModel(model), [v.value for v in model.trainable_variables], probes)
        except UserCodeError as error:
            if not _needs_mask(model, probes, shape, length):
                raise
            raise InputError(
                f"{who} has a call that works with a mask but fails without one, allowed: "
                "call(self, x, mask=None) that also works if mask is None, as when a model is built "
                "(docs/your-own-model-and-data.md, docs/unequal-samples.md)"
            ) from error
        if not keras.ops.is_tensor(outputs):
            raise InputError(_not_one_tensor(who, outputs, num_classes if takes_logits else None))
        if takes_logits:
            _check_output(who, tuple(outputs.shape), (NUM_PROBES, num_classes))
        _check_type(who, outputs.dtype, precision)
        if (
            takes_logits
            and num_classes > 1
            and _are_probabilities(outputs)
            and _stay_probabilities(model, probes)
        ):
            raise InputError(_not_logits(who, "returns probabilities (the outputs of a sample sum to one)"))
        objective.try_on(Probe(_as_tensor(probe_labels(label, num_classes)), outputs))
    else:
        objective.try_on(Probe(_as_tensor(probe_labels(label, num_classes)), _spread_outputs(num_classes)))
    if None in shape:
        with user_errors(dnn, "calling it with a mask"):
            warned += _check_mask(who, model, shape, length)
    if not model.trainable_variables:
        raise InputError(
            f"{who} has no weights to train, allowed: at least one; make layers in __init__ (or in the "
            "function), not in call, and leave some of them trainable"
        )
    return objective, warned


def _is_of_keras(model: keras.Model) -> bool:
    """Whether this is Sequential or a functional model, not a subclass."""
    return type(model).__module__.partition(".")[0] == "keras"


def _check_inputs(who: str, model: keras.Model, shape: tuple[int | None, ...]) -> None:
    if len(model.inputs) != 1:
        raise InputError(f"{who} takes {len(model.inputs)} inputs, allowed: 1, the samples")
    own = tuple(model.inputs[0].shape)[1:]
    if len(own) != len(shape) or any(n not in (None, m) for n, m in zip(own, shape, strict=True)):
        raise InputError(
            f"{who} takes samples of shape {own}, allowed: {shape}, the shape of the preprocessed samples, "
            "which the callable gets as input_shape"
        )


def _needs_mask(model: keras.Model, probes: Any, shape: tuple[int | None, ...], length: int) -> bool:
    """Whether a model that cannot be called on the probes can be called on them with a mask."""
    if "mask" not in inspect.signature(model.call).parameters:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model(probes, mask=_full_mask(shape, length))
        except USER_ERRORS:  # the error of the call without a mask is the one to report
            return False
    return True


def _full_mask(shape: Sequence[int | None], length: int) -> Any:
    """The mask of probes where nothing is padded; on the first axis, if samples do not differ in length."""
    lengths = [length for n in shape if n is None] or shape[:1]
    return keras.ops.ones((NUM_PROBES, *lengths), "bool")


def _check_mask(who: str, model: keras.Model, shape: tuple[int | None, ...], length: int) -> list[str]:
    """Check that the model takes the mask of padded samples; returns a warning if layers ignore it."""
    if "mask" not in inspect.signature(model.call).parameters:
        raise InputError(
            f"{who} has a call without the argument mask, but samples of shape {shape} differ in length and "
            "are padded with zeros; allowed: call(self, x, mask=None), where mask is true within a sample "
            "(see hpcbal.models.masked_convolutions for an example), or a resize"
        )
    probes = _probes(shape, length)
    trained = TrainedModel(model)
    weights = [[v.value for v in own] for own in (model.trainable_variables, model.non_trainable_variables)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained.stateless_call(*weights, probes, _full_mask(shape, length), training=False)
    texts = dict.fromkeys(str(warning.message) for warning in caught)
    layers = [f"{found['name']} ({found['kind']})" for text in texts if (found := IGNORES_MASK.match(text))]
    if not layers:
        return []
    return [
        f"zeros that pad a short sample count as data, because layers ignore the mask: {', '.join(layers)}; "
        "use layers that respect it (docs/unequal-samples.md)"
    ]


def _check_output(who: str, given: tuple[int | None, ...], expected: tuple[int | None, int]) -> None:
    if given != expected:
        raise InputError(
            f"{who} gives outputs of shape {given}, allowed: {expected}, the logits of {expected[1]} classes"
        )


def _check_type(who: str, dtype: Any, precision: str) -> None:
    name, floatx = keras.backend.standardize_dtype(dtype), keras.config.floatx()
    if name not in (floatx, precision.removeprefix("mixed_")):
        raise InputError(
            f"{who} gives outputs of type {name}, allowed: {floatx}; give its last layer dtype='{floatx}'"
        )


def _not_one_tensor(who: str, given: object, num_classes: int | None) -> str:
    what = "" if num_classes is None else f", the logits of {num_classes} classes"
    return f"{who} returns a {type(given).__name__}, allowed: one tensor{what}"


def _spread_outputs(num_classes: int) -> Any:
    """Logits for the probes where the model need not be called."""
    return _as_tensor(np.random.default_rng(3).normal(size=(NUM_PROBES, num_classes)))


def _probes(shape: Sequence[Any], length: int) -> Any:
    return _as_tensor(probe_samples(shape, length))


def _as_tensor(values: Array) -> Any:
    """A tensor of Keras: classes as they are, other numbers in its type."""
    return keras.ops.convert_to_tensor(values, "int64" if values.dtype == np.int64 else keras.config.floatx())


def _call(model: keras.Model, weights: Sequence[Any], probes: Any) -> Any:
    """The outputs of inference with these weights; changes nothing in the model."""
    others = [v.value for v in model.non_trainable_variables]
    return model.stateless_call(weights, others, probes, training=False)[0]


def _ending(output: Any) -> str | None:
    """The activation at the end of a model of Keras' own layers; `linear` for none, None if unknown."""
    while True:
        operation, node, _ = output._keras_history
        kind = type(operation).__name__
        by_itself = _name_of_activation(kind)  # a layer, or an operation such as keras.ops.relu
        if by_itself is not None:
            return by_itself
        own = getattr(operation, "activation", None)
        name = getattr(own, "__name__", type(own).__name__).lower()
        if kind in _WITH_ACTIVATION and (kind != "Activation" or name != "linear"):
            return name
        if isinstance(operation, keras.Model) and _is_of_keras(operation):
            output = operation.outputs[0]
        elif kind in _UNCHANGING and (own is None or name == "linear"):
            output = operation._inbound_nodes[node].input_tensors[0]
        else:
            return None


def _name_of_activation(kind: str) -> str | None:
    """The activation that a class of layers or operations computes; None if it computes something else."""
    names = (*dir(keras.activations), "prelu")
    return next((name for name in names if name.replace("_", "") == kind.lower()), None)


def _are_probabilities(outputs: Any) -> bool:
    values = np.asarray(outputs, np.float64)
    return bool((values >= 0.0).all() and (np.abs(values.sum(axis=1) - 1.0) <= SUM_TOLERANCE).all())


def _stay_probabilities(model: keras.Model, probes: Any) -> bool:
    """Whether the outputs still sum to one after all weights have changed.

    Otherwise they did so by chance, as with a last layer of zeros whose bias holds the shares of the classes.
    """
    rng = np.random.default_rng(1)
    moved = [
        np.asarray(v.value) + rng.normal(0.0, 0.1, v.shape).astype(v.dtype) for v in model.trainable_variables
    ]
    return _are_probabilities(_call(TrainedModel(model), moved, probes))


def _not_logits(who: str, what: str) -> str:
    return (
        f"{who} {what}, allowed: logits, because the loss applies softmax itself and a second one trains "
        "badly; remove the activation of the last layer: Dense(num_classes), or classifier_activation=None "
        "for keras.applications"
    )


def _unused(model: keras.Model) -> list[str]:
    """Warnings of what the model has and training does not use."""
    found = []
    if getattr(model, "compiled", False):
        found.append(
            "its compiled loss, optimizer and metrics are not used; see optimizer in the configuration"
        )
    if type(model).train_step is not keras.Model.train_step:
        found.append("its train_step is not used, only its call")
    return found
