"""One rank's predictions: build a DNN, load its weights, and call it on preprocessed samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcbal.checkpoint.weights import KeptWeights, Which, read_weights
from hpcbal.config import DnnConfig
from hpcbal.config.schema.objective import predicted_by
from hpcbal.data import BadSample, PreprocessedSamples
from hpcbal.data.content import are_alike
from hpcbal.data.evaluation import SampleSet
from hpcbal.data.labels import class_names, in_words
from hpcbal.data.spec import UNNAMED
from hpcbal.dataplane.reader import Batch as SampleBatch
from hpcbal.ensembling.answers import Kind, has_soft_labels, items_of, labels_of, predictions_of, y_of
from hpcbal.errors import CheckpointError, InputError
from hpcbal.runtime.group.evidence import part_of
from hpcbal.runtime.group.replicas import ReplicaCache
from hpcbal.training.backend import Backend, Batch, Replica, Sums
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.outputs import by_name

log = logging.getLogger(__name__)

Describe = Callable[[Sums], dict[str, float]]
"""Turns sums over samples into named metrics."""


class StoppedError(Exception):
    """A signal asked this rank to stop."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a DNN for some samples.

    Attributes:
        positions: of the samples in their set, shape (n,).
        rows: predictions of their items, as `items_of` returns them, shape (n * items_per_sample, ...).
        labels: of the items, float64, shape (n * items_per_sample,); without a meaning if the set has none.
        sums: what the replica's own evaluation found; nothing if the set has no labels.
    """

    positions: NDArray[np.int64]
    rows: NDArray[np.float64]
    labels: NDArray[np.float64]
    sums: Sums


@dataclass
class Trained:
    """Facts about the DNNs that a rank has built.

    Attributes:
        weights: the weights of each, by name.
        describe: turns sums into metrics, by name.
        shapes: shape of the prediction for one sample, by name.
        notes: warnings of their checkpoints.
        broken: samples that cannot be used, with the reason, by set and position.
        has_soft_labels: whether labels were met that give shares to several classes.
    """

    weights: dict[str, KeptWeights] = field(default_factory=dict)
    describe: dict[str, Describe] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: dict[tuple[str, int], str] = field(default_factory=dict)
    has_soft_labels: bool = False


class Predictor:
    """Predicts with any DNN of a run; keeps the networks that fit into memory.

    Args:
        backend: builds the networks.
        trained: the samples that the DNNs were trained on; only their specs are used.
        directory_of: the directory of a DNN, by name.
        which: see `EvaluationRequest`.
        seed: of the run.
        check_stop: called between two batches; raises `StoppedError` if this rank is to stop.
        note: gets what this rank does.
    """

    def __init__(
        self,
        backend: Backend,
        trained: PreprocessedSamples,
        directory_of: Callable[[str], Path],
        which: Which | None,
        seed: int,
        check_stop: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self._backend = backend
        self._trained = trained
        self._directory_of = directory_of
        self._which = which
        self._seed = seed
        self._check_stop = check_stop
        self._note = note
        self._replicas = ReplicaCache()
        self.found = Trained()

    def predictions(
        self, dnn: DnnConfig, samples: SampleSet, start: int, stop: int, kind: Kind, output: str = UNNAMED
    ) -> Iterator[Predictions]:
        """Predict the samples start..stop-1 of a set, a batch of the DNN at a time.

        Args:
            output: name of the output that is predicted, if labels have names.

        Samples that cannot be used are left out, and recorded in `found`; so are samples without labels for
        which a prediction is not finite.

        Raises:
            InputError: if the DNN cannot be built, or its weights do not fit.
            NonFiniteError: if samples have labels, and a prediction or the loss of a batch is not finite.
            MemoryError: if host or device memory is not enough.
            StoppedError: see `check_stop`.
        """
        for positions, batch, outputs in self.outputs(
            dnn, samples, start, stop, output, refuses_nan=samples.has_labels
        ):
            y = samples.source.label_spec.unpacked(batch.y)[output]
            labels, rows = labels_of(y, kind), items_of(outputs, kind)
            sums = Sums()
            if samples.has_labels:
                sums = self.replica_of(dnn).evaluate(batch)
                self.found.has_soft_labels |= has_soft_labels(y, kind)
            if len(rows) != len(labels):
                hint = _hint(of_output(dnn, output))
                raise InputError(
                    f"its outputs of shape {outputs.shape[1:]} predict {len(rows) // len(positions)} items "
                    f"of a sample, but its label has {len(labels) // len(positions)}{hint}"
                )
            yield Predictions(positions, rows, labels, sums)

    def outputs(
        self,
        dnn: DnnConfig,
        samples: SampleSet,
        start: int,
        stop: int,
        output: str = UNNAMED,
        *,
        refuses_nan: bool = False,
    ) -> Iterator[tuple[NDArray[np.int64], Batch, NDArray[np.float64]]]:
        """Call a DNN on the samples start..stop-1 of a set, a batch of it at a time; labels are not used.

        Samples that cannot be used are left out, and recorded in `found`.

        Args:
            output: name of the output, if labels have names.
            refuses_nan: whether a prediction that is not finite is an error; if not, its sample is left out.

        Yields:
            Positions of samples in their set, shape (n,), n >= 1; the samples; what the DNN predicts for
            them, as `Replica.predict` returns it, shape (n, ...).

        Raises: as for `predictions`, but for the loss.
        """
        self._check_stop()
        replica = self.replica_of(dnn)
        for first in range(start, stop, dnn.batch_size):
            self.note(f"evaluating {dnn.name} from sample {first} of {samples.name}")
            self._check_stop()
            positions, batch = self._read(samples, np.arange(first, min(first + dnn.batch_size, stop)))
            if len(positions):
                every = by_name(replica.predict(batch))
                outputs = every[output]
                self._check_classes(dnn, outputs.shape[1:], output)
                self.found.shapes[dnn.name] = outputs.shape[1:]
                is_finite = np.ones(len(positions), bool)
                for each in every.values():
                    is_finite &= np.isfinite(each).reshape(len(positions), -1).all(axis=1)
                if not is_finite.all():
                    self._note_not_finite(dnn, samples, positions[~is_finite], refuses_nan)
                    kept = np.flatnonzero(is_finite)
                    if not len(kept):
                        continue
                    positions, batch, outputs = positions[kept], part_of(batch, kept), outputs[kept]
                yield positions, batch, outputs

    def _note_not_finite(
        self, dnn: DnnConfig, samples: SampleSet, positions: NDArray[np.int64], is_error: bool
    ) -> None:
        """Record samples for which a prediction is not finite, or raise `NonFiniteError`."""
        for position in positions.tolist():
            sample_id = int(samples.ids[position])
            where = samples.source.where(sample_id)
            if is_error:
                raise NonFiniteError(f"it predicts NaN or infinity for sample {sample_id} ({where})")
            problem = BadSample(sample_id, where, f"{dnn.name} predicts NaN or infinity")
            self.found.broken.setdefault((samples.name, position), str(problem))

    def measure(
        self,
        dnn: DnnConfig,
        samples: SampleSet,
        rows: NDArray[np.float64],
        labels: NDArray[np.float64],
        kind: Kind,
    ) -> Sums:
        """Measure the loss and the metrics of a DNN on predictions that are not its own.

        Args:
            dnn: one that this rank has just called.
            rows, labels: of the items of some samples, as in `Predictions`.
        """
        replica, shape = self.replica_of(dnn), self.found.shapes[dnn.name]
        label = samples.source.label_spec
        y = y_of(labels, label.shape, label.dtype, kind)
        predictions = predictions_of(rows, shape, kind)
        total = Sums()
        for first in range(0, len(y), dnn.batch_size):
            self.note(f"measuring an ensemble from sample {first} of {len(y)}")
            some = slice(first, first + dnn.batch_size)
            total += replica.measure(y[some], predictions[some])
        return total

    def note(self, doing: str) -> None:
        """Note what this rank does; a sign of life."""
        self._note(doing)

    def close(self) -> None:
        """Free the networks."""
        self._replicas.clear()

    def _check_classes(self, dnn: DnnConfig, shape: tuple[int, ...], output: str) -> None:
        """Refuse predictions that a metric alone calls classes, if there is none for each class."""
        num_classes = self._trained.label_spec.by_name[output].num_classes or self._trained.num_classes
        if not dnn.has_own_loss or predicted_by(of_output(dnn, output)) != "classes":
            return
        if shape[-1:] != (num_classes,):
            raise InputError(
                f"its forward returns outputs of shape {shape} for a sample, allowed with loss module and "
                f"the metric accuracy: logits of the {num_classes} classes in the last axis"
            )

    def _read(self, samples: SampleSet, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], Batch]:
        """The samples at these positions, as far as they can be used."""
        kept, arrays, labels = [], [], []
        for position in positions.tolist():
            try:
                array, label = samples.source.sample(int(samples.ids[position]), 0, training=False)
            except BadSample as error:
                self.found.broken[samples.name, position] = str(error)
                continue
            kept.append(position)
            arrays.append(array)
            labels.append(label)
        found, source = np.array(kept, np.int64), samples.source
        return found, SampleBatch.of_samples(
            samples.ids[found], arrays, labels, source.sample_spec, source.label_spec
        )

    def replica_of(self, dnn: DnnConfig) -> Replica:
        """The network of a DNN with its weights; built if this rank does not have it."""
        replica = self._replicas.get(dnn.name)
        if replica is not None:
            return replica
        self._note(f"building {dnn.name}")
        weights, warnings = read_weights(self._directory_of(dnn.name), self._which)
        names = class_names(self._trained.dataset) or ()
        if weights.class_names and names and weights.class_names != names:
            raise InputError(
                f"it was trained on the classes {in_words(weights.class_names)}, but the data have "
                f"{in_words(names)} now (in this order)"
            )
        replica = self._backend.build(
            dnn.for_prediction(),
            self._trained.sample_spec,
            self._trained.num_classes,
            self._seed,
            self._trained.on_device,
            self._trained.label_spec,
        )  # without weights of samples: each counts the same
        try:
            replica.load_state({**replica.state(), **weights.arrays})  # the optimizer stays as it is
        except CheckpointError as error:
            replica.close()
            raise InputError(
                f"its model changed since this checkpoint (epoch {weights.epoch}): {error}; restore the code "
                "that it was trained with"
            ) from error
        self._replicas.put(dnn.name, replica)
        log.info("%s: built, with weights: %s, from %s", dnn.name, weights.in_words(), weights.path)
        self.found.weights[dnn.name] = weights
        self.found.describe[dnn.name] = replica.metrics
        self.found.notes += [text for text in warnings if text not in self.found.notes]
        if not are_alike(weights.fingerprint, self._trained.fingerprint):
            note = (
                f"{dnn.name} was trained on other data, or with another preprocessing, than there is now: "
                "its validation samples may be training samples"
            )
            self.found.notes += [] if note in self.found.notes else [note]
        return replica


def of_output(dnn: DnnConfig, output: str) -> DnnConfig:
    """Return a DNN with one output: the one that is named, if labels have names."""
    return dnn.of_output(output) if output else dnn


def _hint(dnn: DnnConfig) -> str:
    """Return a hint for outputs that do not fit the labels; empty if there is none."""
    if predicted_by(dnn) != "values" or dnn.loss is None or isinstance(dnn.loss, Mapping):
        return ""
    return (
        f"; with loss {dnn.loss.name} outputs count as values, because only the default loss and cross "
        "entropies of Keras by name say that they are classes, and with loss module the metric accuracy"
    )
