"""A Keras model trained by stochastic gradient descent, synchronous or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.objective import KERAS_LOSSES, LossConfig, MetricConfig
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.config.schema.section import is_import_path
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.events.history import KERAS_METRICS
from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Array, IntArray
from hpcbal.paramserver.api.update import AppError, Parameters, Table, Updates
from hpcbal.paramserver.apps.arguments import check_above_0, check_at_least, dense_column, first_samples
from hpcbal.training.groups import NonFiniteError

if TYPE_CHECKING:
    from hpcbal.training.backend import Sums
    from hpcbal.training.keras.vector_replica import VectorReplica

COLUMNS = 256
"""Weights in a row of the table: rows are what parameter blocks are cut from."""

EVALUATED_AT_ONCE = 512
"""Samples of one call of the model when an objective is computed."""

_VALIDATION = "val_"
_NAME = "KerasNetwork"


@dataclass(frozen=True, slots=True, eq=False)
class _Samples:
    """Samples as networks take them."""

    ids: IntArray
    x: Array
    y: Array
    work: float = 1.0
    padding_limit: float = math.inf


class KerasNetwork(App):
    """Minimise the mean loss of a Keras model by w -= learning_rate * gradient.

    The dataset has the columns `samples`, shape (n, *sample shape), and `labels`; where the column
    `is_validation` is true, samples are only evaluated. It states `num_classes`, and `num_validation` if any
    are. `hpcbal.paramserver.apps:samples` makes such a dataset of one for ensembles. The table `weights`
    holds all trainable variables; `statistics`, if there are any, those that a step moves without a gradient,
    as batch normalisation does.

    In `sync` and `stale`, the gradient is that of the mean over the step, and training equals that of one
    process, except that dropout draws for each worker's part. A model with moving statistics trains only in
    `async`, where each turn moves them as Keras does.

    Args:
        source: the dataset.
        model: import path of a callable that builds the model, as for a DNN of an ensemble.
        args: its arguments, beside the shape of a sample and the number of classes.
        learning_rate: step size, > 0.
        decay: the step size of epoch e is learning_rate / (1 + decay * e); >= 0.
        l2: weight of l2/2 |w|^2 in what is minimised, >= 0; not part of the metric `loss`.
        loss: name in Keras, or import path; null: the cross entropy of classes, from logits.
        metrics: names in Keras, or import paths; null: `accuracy` for classes, otherwise none.
        seed: of the initial weights and of random layers, >= 0.

    Metrics: `loss` and `metrics` over the training samples after the epoch, without dropout; before them the
    same of validation samples, if there are any, as `val_loss` and so on.
    """

    def __init__(
        self,
        source: SampleSource,
        model: str,
        args: Mapping[str, Any] | None = None,
        learning_rate: float = 0.1,
        decay: float = 0.0,
        l2: float = 0.0,
        loss: str | None = None,
        metrics: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source)
        check_above_0(_NAME, learning_rate=learning_rate)
        check_at_least(_NAME, 0, decay=decay, l2=l2, seed=seed)
        self._learning_rate, self._decay, self._l2 = learning_rate, decay, l2
        named_metrics = None
        if metrics is not None:
            named_metrics = tuple(
                MetricConfig.model_construct(name=_checked("metrics", name, KERAS_METRICS))
                for name in metrics
            )
        self._network = DnnConfig.model_construct(
            name="network",
            model=model,
            args=dict(args or {}),
            # Not used: servers add what workers push.
            optimizer=OptimizerConfig(name="sgd", learning_rate=1.0),
            loss=None
            if loss is None
            else LossConfig.model_construct(name=_checked("loss", loss, KERAS_LOSSES)),
            metrics=named_metrics,
            seed=seed,
        )
        self._seed = seed
        columns = first_samples(_NAME, source, ("samples", "labels"))
        samples, labels = (dense_column(_NAME, columns, name) for name in ("samples", "labels"))
        self._sample = SampleSpec.of(samples.shape[1:], str(samples.dtype))
        self._label = LabelSpec(labels.shape[1:], str(labels.dtype))
        self._num_classes = int(source.facts.get("num_classes", 1))
        self._num_training = source.num_samples - int(source.facts.get("num_validation", 0))
        self._made: VectorReplica | None = None

    @property
    def replica(self) -> VectorReplica:
        """The model, built when it is needed first."""
        if self._made is None:
            # Imported here: naming the app in a file must not cost the import of TensorFlow.
            from hpcbal.training.keras.vector_replica import VectorReplica

            self._made = VectorReplica(
                self._network, self._sample, self._label, self._num_classes, self._seed
            )
        return self._made

    def tables(self) -> Sequence[Table]:
        replica = self.replica
        sizes = {"weights": replica.num_weights, "statistics": replica.num_statistics}
        return [Table(name, -(-size // COLUMNS), COLUMNS, "float32") for name, size in sizes.items() if size]

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> NDArray[Any]:
        """As the model's callable initialises them, with the seed in `args`."""
        weights, statistics = self.replica.first
        return _rows_of(weights if table == "weights" else statistics)[rows]

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        training = self._training(batch)
        self._load(parameters)
        # How many of the step's samples are for training is known only if one worker has all of them. What it
        # does must not depend on that, so every step counts the share of all samples.
        is_whole = batch.step_samples == batch.num_samples
        of_step = batch.step_samples * self._num_training / self.source.num_samples
        if not len(training.ids):
            return {}
        replica = self.replica
        if replica.num_statistics and not is_whole:
            raise AppError(
                f"model {self._network.model} has moving statistics, such as those of batch normalisation, "
                "which workers of one step cannot move together; use consistency: async"
            )
        try:
            gradient, moved, _ = replica.gradient(training, of_step, batch.epoch)
        except NonFiniteError as error:
            raise AppError(f"epoch {batch.epoch + 1}: {error}; a smaller learning_rate may help") from error
        rate = self._learning_rate / (1.0 + self._decay * batch.epoch)
        if self._l2:
            weights = parameters["weights"].reshape(-1)[: len(gradient)]
            gradient += (self._l2 * len(training.ids) / of_step) * weights
        gradient *= -rate
        updates = {"weights": _rows_of(gradient)}
        if replica.num_statistics:
            updates["statistics"] = _rows_of(moved)
        return updates

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        self._load(parameters)
        found = dict(self._sums("", self._training(batch)))
        if self._has_validation:
            found |= self._sums(_VALIDATION, self._validation(batch))
        return found

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        prefixes = (_VALIDATION, "") if self._has_validation else ("",)
        return {
            f"{prefix}{name}": value
            for prefix in prefixes
            for name, value in self.replica.metrics(self._joined(prefix, sums)).items()
        }

    def save_keras(self, tables: Mapping[str, NDArray[Any]], path: Path) -> None:
        """See `App.save_keras`."""
        from hpcbal.training.keras.plain_model import check_saved, plain_model, save_keras

        self._load(tables)
        who = f"model {self._network.model}"
        model, _ = plain_model(who, self.replica.model, self._sample)
        save_keras(model, path)
        check_saved(who, self.replica.model, path, self._sample)

    # Samples.

    @property
    def _has_validation(self) -> bool:
        return self._num_training < self.source.num_samples

    def _training(self, batch: Batch) -> _Samples:
        return self._chosen(batch, ~batch.array("is_validation")) if self._has_validation else _all(batch)

    def _validation(self, batch: Batch) -> _Samples:
        return self._chosen(batch, batch.array("is_validation"))

    def _chosen(self, batch: Batch, chosen: NDArray[np.bool_]) -> _Samples:
        return _Samples(batch.samples[chosen], batch.array("samples")[chosen], batch.array("labels")[chosen])

    # Parameters.

    def _load(self, parameters: Parameters) -> None:
        replica = self.replica
        statistics = (
            parameters["statistics"] if replica.num_statistics else np.zeros((0, COLUMNS), np.float32)
        )
        replica.load(
            parameters["weights"].reshape(-1)[: replica.num_weights],
            statistics.reshape(-1)[: replica.num_statistics],
        )

    # Objectives.

    def _sums(self, prefix: str, samples: _Samples) -> Iterator[tuple[str, float]]:
        """Sums by name, for `_joined`."""
        from hpcbal.training.backend import Sums

        sums = Sums(0.0, 0, np.zeros(self.replica.num_states))
        for start in range(0, len(samples.ids), EVALUATED_AT_ONCE):
            part = slice(start, start + EVALUATED_AT_ONCE)
            sums += self.replica.evaluate(_Samples(samples.ids[part], samples.x[part], samples.y[part]))
        yield f"{prefix}loss", sums.loss
        yield f"{prefix}samples", float(sums.count)
        for number, state in enumerate(sums.states.tolist()):
            yield f"{prefix}state {number}", state

    def _joined(self, prefix: str, sums: Mapping[str, float]) -> Sums:
        from hpcbal.training.backend import Sums

        states = [sums[f"{prefix}state {number}"] for number in range(self.replica.num_states)]
        return Sums(sums[f"{prefix}loss"], round(sums[f"{prefix}samples"]), np.array(states))


def _all(batch: Batch) -> _Samples:
    return _Samples(batch.samples, batch.array("samples"), batch.array("labels"))


def _rows_of(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Shape (rows, COLUMNS); the end of the last row is 0."""
    if len(vector) % COLUMNS:
        vector = np.concatenate([vector, np.zeros(-len(vector) % COLUMNS, np.float32)])
    return vector.reshape(-1, COLUMNS)


def _checked(what: str, name: str, known: Mapping[str, Any]) -> str:
    if not isinstance(name, str) or (name not in known and not is_import_path(name)):
        raise InputError(
            f"args.{what} of {_NAME}: got {name!r}, allowed: {', '.join(sorted(known))}, or an import path "
            "such as package.module:function"
        )
    return name
