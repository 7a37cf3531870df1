"""Check that a user's Keras model can be trained, by its layers, outputs and weights.

What the structure of a model shows is read from it. Otherwise, as for subclassed models, the model is called
on a few samples.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.source.meant import did_you_mean
from hpcbal.data.spec import CLASS_LABEL, UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.keras.objective import KerasObjective
from hpcbal.training.objective import Objective
from hpcbal.training.outputs import Outputs, by_name, check_names, named_outputs
from hpcbal.training.user_model import (
    NUM_PROBES,
    PROBE_LENGTHS,
    SUM_TOLERANCE,
    labels_of_probes,
    probe_arrays,
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

    Samples of named arrays go to a functional model as those that it takes, and to a subclass as one dict.
    Outputs are a tensor, or a dict by the names of the labels.

    Args:
        model: built.
        label: of the data; None: one label without a name.
        who: the DNN and its model, for messages.
    """

    def __init__(self, model: keras.Model, label: LabelSpec = CLASS_LABEL, who: str = "") -> None:
        super().__init__(name=f"{model.name}_trained")
        self._who, self._outputs = who, tuple(name for name, _ in label.parts)
        self.model = model if model._call_has_training_arg else _TakesTraining(model)
        self.built = True
        # Otherwise Keras warns that no mask leaves the model, which is right: its outputs are logits.
        self.supports_masking = self.model.supports_masking = model.supports_masking = True

    def call(self, x: Any, mask: Any = None, training: bool = False) -> Any:
        masked = {} if mask is None else {"mask": mask}
        own = users_own(self)
        given = model_inputs(own, x if isinstance(x, dict) else {UNNAMED: x})
        outputs = self.model(given, training=training, **masked)
        if self._outputs:
            outputs = users_own_outputs(own, outputs, self._outputs, self._who)
        # With mixed precision a last layer may compute in 16 bits; losses and metrics do not.
        return keras.tree.map_structure(
            lambda each: keras.ops.cast(each, keras.config.floatx()) if keras.ops.is_tensor(each) else each,
            outputs,
        )


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


def model_inputs(model: keras.Model, arrays: Mapping[str, Any]) -> Any:
    """Return what a user's model is called with.

    Args:
        arrays: of samples, by name; one without a name is under `UNNAMED`.

    Returns: the array without a name; else a dict of those that a functional model takes, or of all.
    """
    if UNNAMED in arrays or not (_is_of_keras(model) and model.built):
        return arrays.get(UNNAMED, arrays)
    names = list(_inputs_by_name(model))
    if not keras.tree.is_nested(_inputs_of(model)):
        return arrays[names[0]]
    return {name: arrays[name] for name in names}


def users_own_outputs(
    model: keras.Model, returned: Any, names: Sequence[str], who: str = ""
) -> dict[str, Any]:
    """Return what a user's model has returned, by the names of its outputs; without names one `UNNAMED`.

    Raises:
        InputError: if they have other names.
    """
    return dict(by_name(named_outputs(who, returned, names, _output_names(model))))


def checked(
    dnn: DnnConfig,
    model: Any,
    sample: SampleSpec,
    num_classes: int,
    label: LabelSpec = CLASS_LABEL,
    precision: str = "",
) -> tuple[TrainedModel, Outputs, list[str]]:
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
        objective, found = _check(dnn, who, model, sample, num_classes, label, precision, short)
    except UserCodeError:
        if None not in sample.shape:
            raise
        objective, found = _check(dnn, who, model, sample, num_classes, label, precision, long)
    return TrainedModel(model, label, who), objective, [*_unused(model), *found]


def _check(
    dnn: DnnConfig,
    who: str,
    model: keras.Model,
    sample: SampleSpec,
    num_classes: int,
    label: LabelSpec,
    precision: str,
    length: int,
) -> tuple[Outputs, list[str]]:
    """The same on samples of this length, where samples differ in length; returns warnings."""
    shape, names = tuple(sample.shape), [name for name, _ in label.parts]
    check_names(dnn, label)
    endings: dict[str, str | None] = {}
    if _is_of_keras(model):  # its structure is all that it does
        if not model.built:
            with user_errors(dnn, f"building it for samples of shape {sample.shapes}"):
                model.build({name: (None, *each.shape) for name, each in sample.parts} or (None, *shape))
        _check_inputs(who, model, sample)
        if not sample.parts and not names:
            given = model.compute_output_shape((None, *shape))
            if not isinstance(given, tuple) or any(isinstance(n, tuple) for n in given):
                raise InputError(_not_one_tensor(who, given, num_classes if dnn.loss is None else None))
            if dnn.loss is None:
                _check_output(who, given, (None, num_classes))
        symbols = named_outputs(who, _outputs_of(model), names, _output_names(model))
        for name, symbol in by_name(symbols).items():
            if not isinstance(symbol, keras.KerasTensor):
                raise InputError(_not_one_tensor(_of(who, name), symbol, None))
            _check_type(_of(who, name), symbol.dtype, precision)
            endings[name] = _ending(symbol)
    objectives = Outputs(dnn, label, num_classes, KerasObjective, endings)
    warned: list[str] = []
    for name, objective in objectives.by_name.items():
        warned += _check_ending(_of(who, name), objective, endings.get(name))
    is_known = all(
        objective.takes_classes and endings.get(name) == "linear"
        for name, objective in objectives.by_name.items()
    )
    if names or sample.parts or not is_known or dnn.metrics:
        probes = _probes(sample, length)
        trained = TrainedModel(model, label, who)
        try:
            with user_errors(dnn, f"calling it on {NUM_PROBES} samples of shape {sample.shapes}"):
                if not all(layer.built for layer in model._flatten_layers()):
                    model(probes)
                outputs = _call(trained, [v.value for v in model.trainable_variables], probes)
        except UserCodeError as error:
            if not _needs_mask(model, probes, shape, length):
                raise
            raise InputError(
                f"{who} has a call that works with a mask but fails without one, allowed: "
                "call(self, x, mask=None) that also works if mask is None, as when a model is built "
                "(docs/your-own-model-and-data.md, docs/unequal-samples.md)"
            ) from error
        for name, objective in objectives.by_name.items():
            classes = dict(label.parts)[name].num_classes if name else num_classes
            _check_outputs(_of(who, name), objective, by_name(outputs).get(name, outputs), classes, precision)
            if objective.takes_classes and classes > 1 and _stay_probabilities(trained, name, probes):
                what = "returns probabilities (the outputs of a sample sum to one)"
                raise InputError(_not_logits(_of(who, name), what))
        objectives.try_on(_labels(label, num_classes), outputs)
    else:
        objectives.try_on(_labels(label, num_classes), _spread_outputs(num_classes))
    if None in shape:
        with user_errors(dnn, "calling it with a mask"):
            warned += _check_mask(who, model, shape, length)
    if not model.trainable_variables:
        raise InputError(
            f"{who} has no weights to train, allowed: at least one; make layers in __init__ (or in the "
            "function), not in call, and leave some of them trainable"
        )
    return objectives, warned


def _of(who: str, output: str) -> str:
    return f"{who}: output {output}" if output else who


def _check_ending(who: str, objective: Objective, ending: str | None) -> list[str]:
    """Check the activation at the end of an output, as far as the structure of the model shows it."""
    if not objective.takes_classes:
        return []
    if ending in _SQUASHING:
        raise InputError(_not_logits(who, f"ends in {ending}"))
    if ending in (*_FOR_LOGITS, None):
        return []
    return [
        f"it ends in {ending}, but the loss takes logits, which may be any numbers, so it may not learn; "
        "remove the activation of the last layer: Dense(num_classes)"
    ]


def _check_outputs(who: str, objective: Objective, outputs: Any, num_classes: int, precision: str) -> None:
    """Check one output of the model for the probes."""
    takes_logits = objective.takes_classes
    if not keras.ops.is_tensor(outputs):
        raise InputError(_not_one_tensor(who, outputs, num_classes if takes_logits else None))
    if takes_logits:
        _check_output(who, tuple(outputs.shape), (NUM_PROBES, num_classes))
    _check_type(who, outputs.dtype, precision)


def _is_of_keras(model: keras.Model) -> bool:
    """Whether this is Sequential or a functional model, not a subclass."""
    return type(model).__module__.partition(".")[0] == "keras"


def _inputs_of(model: keras.Model) -> Any:
    """The symbolic inputs of a model of Keras' own layers: a tensor, or several in a dict or a list."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model._inputs_struct


def _outputs_of(model: keras.Model) -> Any:
    """Its symbolic outputs."""
    return model.outputs[0] if isinstance(model, keras.Sequential) else model._outputs_struct


def _output_names(model: keras.Model) -> Sequence[str]:
    """The names that the model gives its outputs; none for a subclass, or a stack of layers."""
    is_functional = _is_of_keras(model) and not isinstance(model, keras.Sequential)
    return list(model.output_names) if is_functional else []


def _inputs_by_name(model: keras.Model) -> dict[str, Any]:
    """Its symbolic inputs: their names are the keys of a dict, or those of its Input layers."""
    inputs = _inputs_of(model)
    return (
        dict(inputs) if isinstance(inputs, dict) else {each.name: each for each in keras.tree.flatten(inputs)}
    )


def _check_inputs(who: str, model: keras.Model, sample: SampleSpec) -> None:
    """Check that the inputs of a functional model are the samples, or named arrays of them."""
    if not sample.parts and len(model.inputs) != 1:
        raise InputError(f"{who} takes {len(model.inputs)} inputs, allowed: 1, the samples")
    shapes = {name: tuple(spec.shape) for name, spec in sample.by_name.items()}
    inputs = _inputs_by_name(model) if sample.parts else {UNNAMED: model.inputs[0]}
    for name, given in inputs.items():
        if name not in shapes:
            raise InputError(
                f"{who} takes the input {name!r}{did_you_mean(name, shapes)}, allowed: the arrays of the "
                f"samples, {', '.join(shapes)}; give its Input layer such a name"
            )
        own, shape = tuple(given.shape)[1:], shapes[name]
        if len(own) != len(shape) or any(n not in (None, m) for n, m in zip(own, shape, strict=True)):
            what = f"the array {name}" if name else "samples"
            raise InputError(
                f"{who} takes {what} of shape {own}, allowed: {shape}, the shape of the preprocessed "
                "samples, which the callable gets as input_shape"
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
    probes = _as_tensor(probe_samples(shape, length))
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


def _probes(sample: SampleSpec, length: int) -> Any:
    """A few samples: a tensor, or a dict of them by name."""
    arrays = {name: _as_tensor(array) for name, array in probe_arrays(sample, length).items()}
    return arrays.get(UNNAMED, arrays)


def _labels(label: LabelSpec, num_classes: int) -> Any:
    return {name: _as_tensor(array) for name, array in labels_of_probes(label, num_classes).items()}


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


def _stay_probabilities(model: TrainedModel, output: str, probes: Any) -> bool:
    """Whether the outputs of an output sum to one, and still do after all weights have changed.

    Otherwise they did so by chance, as with a last layer of zeros whose bias holds the shares of the classes.
    """
    weights = [v.value for v in model.trainable_variables]
    if not _are_probabilities(by_name(_call(model, weights, probes))[output]):
        return False
    rng = np.random.default_rng(1)
    moved = [
        np.asarray(v.value) + rng.normal(0.0, 0.1, v.shape).astype(v.dtype) for v in model.trainable_variables
    ]
    return _are_probabilities(by_name(_call(model, moved, probes))[output])


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
