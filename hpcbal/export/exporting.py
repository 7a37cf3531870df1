"""Export one DNN of a run: build its network, load its weights, write it, and describe it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hpcbal.checkpoint.weights import KeptWeights, Which, read_weights
from hpcbal.config import DnnConfig, EnsembleConfig, load_ensemble
from hpcbal.config.checks.frameworks import framework_of
from hpcbal.config.schema.objective import LossConfig
from hpcbal.data import PreprocessedSamples, open_source
from hpcbal.data.arrays import Affine
from hpcbal.data.content import are_alike
from hpcbal.data.dataset import BadSample, specs_by_name
from hpcbal.data.operations import OPERATIONS
from hpcbal.data.spec import UNNAMED
from hpcbal.dataplane.reader import Batch
from hpcbal.errors import CheckpointError, InputError
from hpcbal.events.history import LOSS
from hpcbal.export.destination import OF_TORCH, destination_of
from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.resources.processes import environment_versions
from hpcbal.telemetry.views.read_status import import_roots_of
from hpcbal.training.backend import Replica, Sums
from hpcbal.training.committee import Written
from hpcbal.training.frameworks import load_framework
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.rank_share import module_shape

if TYPE_CHECKING:
    from hpcbal.training.keras.tensorflow_replica import TensorFlowReplica
    from hpcbal.training.torch.replica import TorchReplica


SCHEMA = 1
MOST_CHECKED = 4096
"""Validation samples with which an export compares the loss of a DNN; with more, it would take too long."""
OUTSIDE_TRAINING = {"random_crop": "cuts out the middle"}
"""Effect of random operations on samples that are not trained; others leave samples as they are."""


def describe(
    config: EnsembleConfig,
    dnn: DnnConfig,
    source: PreprocessedSamples,
    weights: KeptWeights,
    written: Written,
    format_name: str,
) -> dict[str, Any]:
    """The description of an exported model.

    Args:
        source: the run's data.
        weights: those that were exported.
        written: what was written.
        format_name: `keras`, `tensorflow`, `pt`, `safetensors` or `onnx`.
    """
    of_model = {
        name: module_shape(spec.shape) if format_name in OF_TORCH else spec.shape
        for name, spec in source.sample_spec.by_name.items()
    }
    outputs = (
        written.output_shape if isinstance(written.output_shape, Mapping) else {UNNAMED: written.output_shape}
    )
    return {
        "schema": SCHEMA,
        "format": format_name,
        "versions": environment_versions(),
        "run": config.name,
        "dnn": dnn.name,
        "model": {"callable": dnn.model, "args": dict(dnn.args)},
        "import_before_loading": list(written.modules),
        "weights": describe_weights(weights),
        **describe_data(config, source),
        "preprocessing": describe_operations(config, source),
        "input": {
            "is": "a batch of samples after all operations of `preprocessing`",
            "shape": _one_or_named({name: [None, *shape] for name, shape in of_model.items()}),
            "dtype": "float64" if config.backend.precision == "float64" else "float32",
        },
        "output": {
            "is": written.meaning,
            "shape": _one_or_named({name: [None, *shape] for name, shape in outputs.items()}),
        },
    }


def describe_weights(weights: KeptWeights) -> dict[str, Any]:
    """The description of weights that were exported."""
    return {
        "which": weights.which,
        "epoch": weights.epoch,
        "monitor": weights.monitor or None,
        "metrics": dict(weights.metrics),
        "trained_on": weights.fingerprint,
    }


def describe_data(config: EnsembleConfig, source: PreprocessedSamples) -> dict[str, Any]:
    """The description of a run's dataset, its labels and its classes."""
    label = source.dataset.label_spec
    names = getattr(source.dataset, "class_names", None)
    return {
        "dataset": {
            "callable": config.data.dataset,
            "args": dict(config.data.args),
            "sample": _one_or_named(
                {
                    name: None if spec is None else {"shape": list(spec.shape), "dtype": spec.dtype}
                    for name, spec in specs_by_name(source.dataset.sample_spec).items()
                }
            ),
        },
        "label": _one_or_named(
            {name: {"shape": list(each.shape), "dtype": each.dtype} for name, each in label.by_name.items()}
        ),
        "classes": _one_or_named(
            {
                name: {
                    "number": each.num_classes or source.num_classes,
                    "names": list(names) if isinstance(names, list | tuple) else None,
                }
                if each.is_class
                else None
                for name, each in label.by_name.items()
            }
        ),
    }


def _one_or_named(by_name: Mapping[str, Any]) -> Any:
    """The fact about one array or label without a name, or the facts by name."""
    return by_name.get(UNNAMED, by_name) if by_name else None


def describe_operations(config: EnsembleConfig, source: PreprocessedSamples) -> list[dict[str, Any]]:
    """The operations in order, with all arguments, and where hpcbal ran them.

    Of those for one array, the last ones ran on the device.
    """
    on_device = source.indices_on_device
    found = []
    for index, step in enumerate(config.preprocessing):
        entry: dict[str, Any] = {
            "operation": step.name,
            "args": dict(step.args),
            "ran_on": "device" if index in on_device else "preprocessor",
        }
        if step.of:
            entry["of"] = list(step.of)
        if ":" in step.name:
            entry["outside_training"] = "is called without a random stream"
        elif getattr(OPERATIONS.get(step.name), "is_random", False):
            entry["outside_training"] = OUTSIDE_TRAINING.get(step.name, "leaves samples as they are")
        found.append(entry)
    return found


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported DNN.

    Attributes:
        path, description: the model, and the description beside it.
        weights: which weights it has.
        notes: what users should know about it.
    """

    path: Path
    description: Path
    weights: KeptWeights
    notes: Sequence[str]


def export_dnn(directory: Path, name: str, to: Path, which: Which | None = None, *, force: bool) -> Exported:
    """Export a DNN.

    Args:
        directory: output directory of a run.
        name: of the DNN.
        to: of a Keras model a `.keras` file, or a directory for a SavedModel; of a module of PyTorch a `.pt`,
            `.safetensors` or `.onnx` file.
        which: the best or the last weights; None: the best ones if they are kept.
        force: whether to replace a model that is there already.

    Raises:
        InputError: if there is no such DNN, its weights are not kept, its model cannot be exported this way,
            or something is at `to` already.
        OutputError: if the model cannot be written.
    """
    run = RunDirectory(directory)
    config, dnn = _find(run, name)
    framework = framework_of(dnn, config.backend)
    place = destination_of(to, framework, force=force)
    weights, warnings = read_weights(run.job(name), which)
    source = open_source(config)
    notes = list(warnings)
    if not are_alike(weights.fingerprint, source.fingerprint):
        notes.append(
            "the dataset or its preprocessing is not the one that these weights were trained on: the "
            "description beside the model is of the data that there is now"
        )
    who = f"DNN {name}: model {dnn.model}"
    replica = network_of(config, dnn, source, weights, who, source.on_device)
    notes += _notes_on_code(dnn, source, weights, replica)
    losses = {name: _loss_of(dnn, name) for name in source.label_spec.by_name}
    with place.written_aside() as aside:
        if framework == "torch":
            from hpcbal.training.torch.files import write_module

            written = write_module(who, cast("TorchReplica", replica), aside, place.format, losses)
        else:
            from hpcbal.training.keras.plain_model import write_model

            sample = source.sample_spec
            written = write_model(
                who, cast("TensorFlowReplica", replica), aside, place.format, sample, losses
            )
        text = describe(config, dnn, source, weights, written, place.format)
        write_json_atomic(place.description, text, durable=True)
    return Exported(place.path, place.description, weights, [*notes, *written.notes])


def _notes_on_code(
    dnn: DnnConfig, source: PreprocessedSamples, weights: KeptWeights, replica: Replica
) -> list[str]:
    """Return a sentence if the best weights no longer have the loss that they had, or if it is not a number.

    Not known are losses of the last weights, on more than `MOST_CHECKED` validation samples or on other data,
    and those that count weights of samples, of folds, and of modules, which may draw random numbers.
    """
    ids = source.validation_ids
    is_known = weights.monitor != "" and f"val_{LOSS}" in weights.metrics
    is_known = is_known and are_alike(weights.fingerprint, source.fingerprint)
    is_known = is_known and source.sample_weights is None and dnn.fold is None and not dnn.has_own_loss
    if not is_known or not 0 < len(ids) <= MOST_CHECKED:
        return []
    sums = Sums()
    for start in range(0, len(ids), dnn.batch_size):
        some = {}
        for sample_id in ids[start : start + dnn.batch_size].tolist():
            with contextlib.suppress(BadSample):
                array, label = source.sample(sample_id, 0, training=False)
                some[sample_id] = array.copy(), label.copy()
        if some:
            arrays, labels = zip(*some.values(), strict=True)
            try:
                sums += replica.evaluate(
                    Batch.of_samples([*some], arrays, labels, source.sample_spec, source.label_spec)
                )
            except NonFiniteError as error:
                return [
                    f"{dnn.name} was finite on the validation samples when it was saved, but now: {error}"
                ]
    why = weights.why_changed(replica.metrics(sums)[LOSS]) if sums.count else None
    return [] if why is None else [why]


def _loss_of(dnn: DnnConfig, output: str) -> str | None:
    """The name of the loss of an output; None: the default one."""
    loss = dnn.of_output(output).loss
    return loss.name if isinstance(loss, LossConfig) else None


def network_of(
    config: EnsembleConfig,
    dnn: DnnConfig,
    source: PreprocessedSamples,
    weights: KeptWeights,
    who: str,
    on_device: Sequence[Affine],
) -> Replica:
    """The network of a DNN with these weights.

    Args:
        source: of the samples that it predicts.
        who: the DNN and its model, for messages.
        on_device: operations on these samples in front of the network.

    Raises:
        InputError: if the weights do not fit.
    """
    backend = load_framework(framework_of(dnn, config.backend), config.backend.precision, None, who)
    replica = backend.build(
        dnn.for_prediction(),
        source.sample_spec,
        source.num_classes,
        config.seed,
        on_device,
        source.label_spec,
    )
    try:
        replica.load_state({**replica.state(), **weights.arrays})
    except CheckpointError as error:
        raise InputError(
            f"{weights.path}: the model changed since these weights were saved: {error}; restore the code "
            "that it was trained with"
        ) from error
    return replica


def config_of(run: RunDirectory) -> EnsembleConfig:
    """The configuration of a run whose networks can be exported.

    Raises:
        InputError: if there is no run, or its networks are emulated.
    """
    if not run.config.is_file():
        raise InputError(f"{run.root}: no config.yaml: not the output directory of a run")
    config = load_ensemble(run.config, import_roots=import_roots_of(run.root))
    if config.backend.is_emulated:
        raise InputError(
            f"{run.root}: was trained with backend.name: emulated, which makes no models of Keras or "
            "PyTorch; only runs with backend.name: auto, tensorflow or torch can be exported"
        )
    return config


def _find(run: RunDirectory, name: str) -> tuple[EnsembleConfig, DnnConfig]:
    """The configuration of the run, and of one of its DNNs."""
    config = config_of(run)
    found = next((dnn for dnn in config.dnns if dnn.name == name), None)
    if found is None:
        raise InputError(
            f"{run.root}: has no DNN {name!r}, allowed: {', '.join(dnn.name for dnn in config.dnns)}"
        )
    return config, found
