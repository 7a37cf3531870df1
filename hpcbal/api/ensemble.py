"""The trained DNNs of a run in one process, which predict together."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.api.verbs import of_python, warn
from hpcbal.cluster.devices import granted_gpus
from hpcbal.config.schema.objective import predicted_by
from hpcbal.data.evaluation import GivenSamples, SampleSet, open_sample_set, whole_set
from hpcbal.data.held_out import of_same_kind
from hpcbal.data.labels import class_names
from hpcbal.data.source import PreprocessedSamples, open_source
from hpcbal.data.spec import UNNAMED
from hpcbal.ensembling.answers import items_of, predictions_of
from hpcbal.errors import InputError
from hpcbal.runtime.evaluating.evaluator import Evaluator, FailedDnnsError
from hpcbal.runtime.evaluating.predicting import Predictor, of_output
from hpcbal.runtime.evaluating.request import VALIDATION, EvaluationRequest, TrainedRun, open_trained
from hpcbal.runtime.evaluating.result import columns_of, of_one_kind, without_dnns
from hpcbal.runtime.evaluating.workers import OneWorker
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.training.backend import Backend
from hpcbal.training.devices import LocalSlots
from hpcbal.training.frameworks import NativeBackend, needs_of
from hpcbal.training.groups import USER_ERRORS, detail_of
from hpcbal.user_code import is_ctrl_c

if TYPE_CHECKING:
    from hpcbal.checkpoint.weights import Which

SELECTIONS = ("mean", "greedy")
_KERAS = "tensorflow"


class Ensemble:
    """Trained DNNs that predict together; made by `Run.ensemble`. A context manager that frees their memory.

    Attributes:
        members: the weight of each DNN, by name; they sum to 1.
        left_out: why other DNNs are left out, by name.
        classes: the names of the classes, if they have names.
    """

    def __init__(
        self,
        run: TrainedRun,
        trained: PreprocessedSamples,
        backend: Backend,
        predictor: Predictor,
        weights: Sequence[float],
    ) -> None:
        self.members = {dnn.name: float(each) for dnn, each in zip(run.dnns, weights, strict=True)}
        self.left_out = {name: of_python(reason) for name, reason in run.left_out.items()}
        self.classes = tuple(class_names(trained.dataset) or ())
        self._run, self._trained = run, trained
        self._backend, self._predictor = backend, predictor

    def predict(
        self,
        samples: Any,
        *,
        data_args: Mapping[str, Any] | None = None,
    ) -> NDArray[np.float64] | dict[str, NDArray[np.float64]]:
        """Predict some samples; they are preprocessed like validation samples.

        Args:
            samples: arrays, tensors or images like those of the run's dataset, before any preprocessing: in
                one array, a list or a table; or `test`, `validation`, the import path of a dataset, or a
                dataset, also one of another library or a pair, whose labels are not looked at.
            data_args: arguments of the callable at an import path.

        Returns:
            The weighted mean of what the members predict, float64, shape (n, *prediction of one sample):
            probabilities of classes or labels, or values; a dict by output if labels have names. A sample
            that cannot be used has NaN; one warning names the first.

        Raises:
            InputError: if a member cannot be built any more.
            DataError: if there are no samples, or they are of another kind.
        """
        found = self._sample_set(samples, data_args or {})
        predicted = {name: self._predicted(found, name) for name in self._trained.label_spec.by_name}
        return predicted.get(UNNAMED, predicted)

    def _predicted(self, found: SampleSet, output: str) -> NDArray[np.float64]:
        """The predictions of one output."""
        first = self._run.dnns[0]
        kind, num_samples = predicted_by(of_output(first, output)), len(found.ids)
        total: NDArray[np.float64] | None = None
        num_known = np.zeros(num_samples, int)
        shape: tuple[int, ...] = ()
        for dnn in self._run.dnns:
            weight = self.members[dnn.name]
            if not weight:
                continue
            try:
                for positions, _, outputs in self._predictor.outputs(dnn, found, 0, num_samples, output):
                    rows = items_of(outputs, kind).reshape(len(positions), -1)
                    if total is None:
                        total, shape = np.zeros((num_samples, rows.shape[1])), outputs.shape[1:]
                    if rows.shape[1] != total.shape[1]:
                        raise InputError(f"it predicts {outputs.shape[1:]} for a sample, but others {shape}")
                    total[positions] += weight * rows
                    num_known[positions] += 1
            except USER_ERRORS as error:  # a user's model may raise anything
                if is_ctrl_c(error):
                    raise
                reason = detail_of(error).splitlines()[0]
                raise InputError(
                    f"{self._run.root}: DNN {dnn.name} cannot predict: {reason}; name others with dnns"
                ) from error
        is_known = num_known == sum(weight > 0.0 for weight in self.members.values())
        unknown = np.flatnonzero(~is_known).tolist()
        if unknown:
            reason = self._predictor.found.broken.get((found.name, unknown[0]), "for an unknown reason")
            if total is None:
                raise InputError(f"{self._run.root}: no sample of {found.name} can be used: {reason}")
            more = f", nor can {len(unknown) - 1} more" if len(unknown) > 1 else ""
            warn(f"sample {unknown[0]} of {found.name} cannot be used{more}: {reason}")
        assert total is not None
        columns = columns_of(kind, self._trained, output)
        predictions = predictions_of(total.reshape(-1, columns), shape, kind)
        predictions[~is_known] = np.nan
        return predictions

    def close(self) -> None:
        """Free the networks."""
        self._predictor.close()
        self._backend.close()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        members = ", ".join(f"{name} {weight:.2f}" for name, weight in self.members.items() if weight)
        return f"<hpcbal.Ensemble of {str(self._run.root)!r}: {members}>"

    def _sample_set(self, samples: Any, args: Mapping[str, Any]) -> SampleSet:
        config, trained = self._run.config, self._trained
        self._predictor.found.broken.clear()
        if isinstance(samples, str):
            return open_sample_set(config, trained, samples, args, ("samples", "data_args"))
        if hasattr(samples, "read") and hasattr(samples, "label_spec"):
            return whole_set("the given dataset", of_same_kind(samples, trained.dataset, "samples"), config)
        return whole_set("the given samples", GivenSamples(samples, trained.dataset), config)


def open_ensemble(
    directory: Path, select: str, dnns: tuple[str, ...], which: Which | None = None
) -> Ensemble:
    """Load the DNNs of a run; see `Run.ensemble`."""
    if select not in SELECTIONS:
        raise InputError(f"select: got {select!r}, allowed: {', '.join(SELECTIONS)}")
    found = open_trained(EvaluationRequest(directory, patterns=dnns, which=which))
    trained = open_source(found.config)
    run = found
    for output in trained.label_spec.by_name:
        run = of_one_kind(run, output)
    backend = _backend(run)
    predictor = Predictor(backend, trained, RunDirectory(run.root).job, which, run.config.seed)
    try:
        if select == "greedy" and len(run.dnns) > 1:
            run, weights = _selected(run, predictor, trained)
        else:
            weights = (1.0 / len(run.dnns),) * len(run.dnns)
    except BaseException:
        predictor.close()
        backend.close()
        raise
    for name, reason in run.left_out.items():
        warn(f"{name} is left out: {reason}")
    for note in predictor.found.notes:
        warn(note)
    return Ensemble(run, trained, backend, predictor, weights)


def _backend(run: TrainedRun) -> Backend:
    """The backend on all cores of this process, or on a GPU that it may use."""
    config = run.config
    keras: Any = sys.modules.get("keras")
    is_needed = _KERAS in needs_of(run.dnns, config.backend)
    if is_needed and keras is not None and keras.backend.backend() != _KERAS:
        raise InputError(
            f"Keras computes with {keras.backend.backend()} in this process, but hpcbal's Keras models need "
            f"{_KERAS}: set KERAS_BACKEND={_KERAS} before Keras is imported, or predict in another process"
        )
    try:
        slots = LocalSlots.alone(config.slots.device, granted_gpus(os.environ))
        return NativeBackend(config.backend, run.dnns, slots)
    except RuntimeError as error:  # it takes settings before it computes for the first time
        raise InputError(
            f"TensorFlow computes in this process already, with other settings ({error}); call ensemble() "
            "before you use TensorFlow, or predict in another process"
        ) from error


def _selected(
    run: TrainedRun, predictor: Predictor, trained: PreprocessedSamples
) -> tuple[TrainedRun, tuple[float, ...]]:
    """The DNNs that can be called, with their weights by greedy selection."""
    validation = open_sample_set(run.config, trained, VALIDATION)
    output = next(iter(trained.label_spec.by_name))  # where there are several, the first one decides
    kind = predicted_by(of_output(run.dnns[0], output))
    while True:
        columns = columns_of(kind, trained, output)
        evaluator = Evaluator(OneWorker(), predictor, run.dnns, kind, columns, output=output)
        try:
            chosen = evaluator.select(validation)
            break
        except FailedDnnsError as error:
            run = without_dnns(run, error.reasons)
    if chosen is None:
        raise InputError(
            f"{run.root}: nothing can be selected: no validation sample can be used, or the predictions of "
            "all of them take more than 1 GiB; use select='mean'"
        )
    return run, chosen.weights
