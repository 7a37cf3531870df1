"""Export the ensemble of a run as one model: elementwise preprocessing, members, and their weighted mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpcbal.checkpoint.weights import KeptWeights, read_weights
from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.checks.frameworks import framework_of
from hpcbal.data import BadSample, PreprocessedSamples, open_source
from hpcbal.data.arrays import Affine
from hpcbal.data.content import are_alike
from hpcbal.data.operations.base import ElementwiseOperation
from hpcbal.data.operations.mixing import MixingOperation
from hpcbal.data.pipeline import build_operations
from hpcbal.data.spec import UNNAMED
from hpcbal.dataplane.reader import Batch
from hpcbal.errors import DataError, InputError
from hpcbal.export.destination import ensemble_destination_of
from hpcbal.export.exporting import (
    OUTSIDE_TRAINING,
    config_of,
    describe_data,
    describe_operations,
    describe_weights,
    network_of,
)
from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.resources.processes import environment_versions
from hpcbal.telemetry.views.evaluation import MEAN_OF_ALL, SELECTED, EvaluatedDnn, read_evaluation
from hpcbal.training.committee import OF_LINK, Committee, Member, WrittenCommittee
from hpcbal.training.outputs import by_name
from hpcbal.training.weights import Array

SCHEMA = 1
_NUM_TRIED = 32
"""Samples of the run on which the file is compared with its members."""

Combination = Literal["mean", "greedy"]


@dataclass(frozen=True, slots=True)
class ExportedEnsemble:
    """An exported ensemble.

    Attributes:
        path, description: the model, and the description beside it.
        shares: weight of each member, by name.
        num_bytes: size of the model.
        written: see `WrittenCommittee`.
        best: name of the member that is the best one alone.
        num_tried: samples on which it was compared with its members.
        notes: what users should know about it.
    """

    path: Path
    description: Path
    shares: Mapping[str, float]
    num_bytes: int
    written: WrittenCommittee
    best: str
    num_tried: int
    notes: Sequence[str]


def export_ensemble(directory: Path, combination: Combination, to: Path, *, force: bool) -> ExportedEnsemble:
    """Export the ensemble that the last `hpcbal evaluate` has evaluated.

    The model predicts as the evaluation did: the (weighted) mean of its members' predictions. Elementwise
    operations at the end of the preprocessing are inside.

    Args:
        directory: output directory of a run.
        combination: `mean` of all DNNs that were evaluated, or those of the `greedy` selection.
        to: a `.keras` file or a directory for a SavedModel, if all members are Keras models; a `.pt2` or
            `.onnx` file of any members.
        force: whether to replace a model that is there already.

    Raises:
        InputError: if there is no evaluation, DNNs were trained since, the ensemble cannot be exported this
            way, or something is at `to` already.
        DataError: if no sample of the run can be read.
        OutputError: if the model cannot be written.
    """
    run = RunDirectory(directory)
    config = config_of(run)
    chosen = _chosen(run, combination, {dnn.name: dnn for dnn in config.dnns})
    frameworks = {framework_of(dnn, config.backend) for dnn in chosen.dnns}
    place = ensemble_destination_of(to, frameworks, force=force)
    inside, affines = _inside(config)
    steps = [step for index, step in enumerate(config.preprocessing) if index not in inside]
    source = open_source(config.model_copy(update={"preprocessing": tuple(steps)}))
    _check_shapes(source)
    whole = open_source(config)
    notes = []
    if not all(are_alike(kept.fingerprint, whole.fingerprint) for kept in chosen.weights):
        notes.append(
            "the dataset or its preprocessing is not the one that these weights were trained on: the "
            "description beside the model is of the data that there is now"
        )
    batch = _some_samples(source)
    committee, wanted = _committee(config, chosen, source, (*source.on_device, *affines), batch)
    samples = np.asarray(batch.x).astype(committee.input_dtype)
    with place.written_aside() as aside:
        if place.format in ("pt2", "onnx"):
            from hpcbal.training.torch.committee import write_committee
        else:
            from hpcbal.training.keras.committee import write_committee
        written = write_committee(committee, aside, place.format, samples, wanted)
        files = [aside] if aside.is_file() else [each for each in aside.rglob("*") if each.is_file()]
        num_bytes = sum(each.stat().st_size for each in files)
        text = {
            "schema": SCHEMA,
            "format": place.format,
            "versions": environment_versions(),
            "run": config.name,
            "ensemble": {"combination": combination, **chosen.describe()},
            "import_before_loading": list(written.modules),
            **describe_data(config, whole),
            "preprocessing": [
                {**step, "in_the_model": index in inside}
                for index, step in enumerate(describe_operations(config, whole))
            ],
            "input": {
                "is": "a batch of samples after the operations of `preprocessing` that are not in the model; "
                "images have their channels last",
                "shape": [None, *committee.shape],
                "dtype": committee.input_dtype,
            },
            "output": {
                "is": f"the mean of the members' {OF_LINK[committee.link]}, weighted by their shares",
                "shape": [None, *written.output_shape],
            },
        }
        write_json_atomic(place.description, text, durable=True)
    shares = {dnn.name: share for dnn, share in zip(chosen.dnns, chosen.shares, strict=True)}
    return ExportedEnsemble(
        place.path,
        place.description,
        shares,
        num_bytes,
        written,
        chosen.dnns[chosen.best].name,
        len(samples),
        [*notes, *written.notes],
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The members of an ensemble.

    Attributes:
        dnns, shares, weights: of each member.
        best: place of the one that is the best alone.
        calibration: of the ensemble in the last evaluation, by name; empty if there is none.
    """

    dnns: Sequence[DnnConfig]
    shares: Sequence[float]
    weights: Sequence[KeptWeights]
    best: int
    calibration: Mapping[str, float | None]

    def describe(self) -> dict[str, Any]:
        """Return what is written about them."""
        members = [
            {
                "dnn": dnn.name,
                "model": {"callable": dnn.model, "args": dict(dnn.args)},
                "weights": describe_weights(kept),
                "share": share,
            }
            for dnn, share, kept in zip(self.dnns, self.shares, self.weights, strict=True)
        ]
        return {"members": members, "calibration": dict(self.calibration)}


def _chosen(run: RunDirectory, combination: Combination, dnns: Mapping[str, DnnConfig]) -> _Chosen:
    """The members that the last evaluation names, as it evaluated them.

    Args:
        dnns: of the run, by name.
    """
    evaluation = read_evaluation(run.evaluation)
    if evaluation is None:
        raise InputError(
            f"{run.root}: its DNNs were not evaluated; do that first, because the ensemble predicts as the "
            f"evaluation did: hpcbal evaluate {run.root}"
        )
    shares = [dnn.share for dnn in evaluation.dnns]
    if combination == "mean":
        shares = [1.0 / len(shares)] * len(shares)
    found = [(dnn, share) for dnn, share in zip(evaluation.dnns, shares, strict=True) if share]
    if not found:
        raise InputError(
            f"--ensemble: got greedy, but the last evaluation of {run.root} has selected no DNNs (its notes "
            "say why), allowed: mean"
        )
    members = tuple(dnn for dnn, _ in found)
    missing = [dnn.name for dnn in members if dnn.name not in dnns]
    if missing:
        raise InputError(
            f"{run.evaluation}: names the DNN {missing[0]}, which the run has no more: evaluate again"
        )
    best = replace(evaluation, dnns=members).best_dnn or members[0]
    name = MEAN_OF_ALL if combination == "mean" else SELECTED
    return _Chosen(
        [dnns[dnn.name] for dnn in members],
        [share for _, share in found],
        [_weights_of(run, dnn) for dnn in members],
        members.index(best),
        next((each.calibrated for each in evaluation.ensembles if each.name == name), {}),
    )


def _committee(
    config: EnsembleConfig,
    chosen: _Chosen,
    source: PreprocessedSamples,
    affines: tuple[Affine, ...],
    batch: Batch,
) -> tuple[Committee, Array]:
    """Build the networks of the members, and let them predict.

    Args:
        source: of the samples in front of `affines`.
        affines: operations in front of the members.
        batch: some samples.

    Returns: the ensemble, and the weighted mean of what its members predict for these samples.
    """
    members = []
    for dnn, share, kept in zip(chosen.dnns, chosen.shares, chosen.weights, strict=True):
        who = f"DNN {dnn.name}: model {dnn.model}"
        replica = network_of(config, dnn, source, kept, who, affines)
        members.append(Member(who, replica, share, framework_of(dnn, config.backend) == "torch"))
    predictions = [np.asarray(by_name(member.replica.predict(batch))[UNNAMED]) for member in members]
    shapes = {found.shape[1:] for found in predictions}
    links = {link for member in members for link in member.replica.links.values()}
    if len(shapes) > 1 or len(links) > 1:
        raise InputError(
            f"the members predict arrays of the shapes {', '.join(map(str, sorted(shapes)))} as "
            f"{', '.join(sorted(OF_LINK[link] for link in links))}, allowed: the same of all; evaluate those "
            "that belong together with --dnns"
        )
    committee = Committee(
        members,
        affines,
        links.pop(),
        tuple(int(length or 0) for length in source.sample_spec.shape),
        "float64" if config.backend.precision == "float64" else "float32",
        config.backend.precision,
        chosen.best,
    )
    return committee, np.tensordot(chosen.shares, np.stack(predictions), 1)


def _weights_of(run: RunDirectory, dnn: EvaluatedDnn) -> KeptWeights:
    which: Literal["best", "last"] = "best" if dnn.weights == "best" else "last"
    weights, _ = read_weights(run.job(dnn.name), which)
    if weights.epoch != dnn.epoch:
        raise InputError(
            f"{run.root}: {dnn.name} was evaluated after epoch {dnn.epoch}, and has other weights now (epoch "
            f"{weights.epoch}); evaluate again: hpcbal evaluate {run.root}"
        )
    return weights


def _inside(config: EnsembleConfig) -> tuple[frozenset[int], tuple[Affine, ...]]:
    """Return which operations of the preprocessing can be in the model, and these.

    They are the elementwise ones at the end; random operations leave samples outside training as they are,
    but for crops.
    """
    operations = build_operations([(step.name, step.args) for step in config.preprocessing])
    found: list[int] = []
    affines: list[Affine] = []
    for index in reversed(range(len(operations))):
        operation, name = operations[index], config.preprocessing[index].name
        if isinstance(operation, ElementwiseOperation):
            found.append(index)
            affines.append(operation.affine)
        elif not isinstance(operation, MixingOperation) and (
            not operation.is_random or name in OUTSIDE_TRAINING or ":" in name
        ):
            break
    return frozenset(found), tuple(reversed(affines))


def _check_shapes(source: PreprocessedSamples) -> None:
    if source.sample_spec.parts or source.label_spec.parts:
        raise InputError(
            "--ensemble: samples or labels have several named arrays, allowed: one array and one label "
            "without names; export the DNNs one by one: hpcbal export DIR NAME"
        )
    if not source.sample_spec.is_static:
        raise InputError(
            f"--ensemble: samples are {source.sample_spec}, which differ in size, allowed: samples of one "
            "shape; export the DNNs one by one: hpcbal export DIR NAME"
        )


def _some_samples(source: PreprocessedSamples) -> Batch:
    """Samples of the run: validation samples, or training samples if there are none; without broken ones."""
    ids, arrays, labels = [], [], []
    for sample_id in np.concatenate([source.validation_ids, source.train_ids]).tolist():
        try:
            array, label = source.sample(sample_id, 0, training=False)
        except BadSample:
            continue
        ids.append(sample_id)
        arrays.append(array.copy())
        labels.append(label.copy())
        if len(ids) == _NUM_TRIED:
            break
    if len(ids) < 2:
        raise DataError("the ensemble cannot be tried: fewer than two samples of the run can be read")
    return Batch.of_samples(ids, arrays, labels, source.sample_spec, source.label_spec)
