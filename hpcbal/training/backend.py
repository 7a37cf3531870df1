"""The interfaces to a deep-learning library, and to what sums its gradients over a trainer group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.training.weights import Array, Arrays, ModelLayer, layers_by_name

if TYPE_CHECKING:
    from hpcbal.data.arrays import Affine
    from hpcbal.training.objective import Link
    from hpcbal.training.step_exchange import StepExchange


class GradientCollective(Protocol):
    """Sums over the ranks of one trainer group.

    Attributes:
        size: ranks in the group, >= 1.
        rank: rank of this process, 0..size-1; 0 is the master.
        meets: whether the ranks meet before they sum, so that they can `consult`.
    """

    size: int
    rank: int
    meets: bool

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """One fused all-reduce; returns when all ranks of the group have called it.

        Args:
            tensors: of one floating-point type, with equal shapes on all ranks; may be empty.
            status: shape (k,), k >= 1; summed in the same operation, in the type of the tensors.

        Returns:
            The sums of the tensors, valid until the next call, and of the status, float64 of shape (k,). Both
            are equal on all ranks.
        """

    def exchange(self, numbers: Array) -> None:
        """Sum a short vector in the middle of a step, by MPI; returns when all ranks have called it.

        May be called from another thread than `sum`, but never during `sum`.

        Args:
            numbers: float64, contiguous, equally long on all ranks; replaced by the sums.
        """

    def tell(self, numbers: Array) -> None:
        """Send a short vector from the master to all ranks, by MPI; returns when this rank has it.

        Args:
            numbers: as for `exchange`; on the other ranks replaced by the master's.
        """

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        """Meet before `sum`: the master gets the numbers of all ranks, and its answer goes to all ranks.

        The ranks wait for each other here instead of in the following `sum`, which is then fast: a question
        and its answer cost one wait for the slowest rank, not two. Allowed only if the collective `meets`:
        Horovod's ranks negotiate while they wait, and would start that too late.

        Args:
            numbers: numbers of this rank, float64, shape (k,), contiguous, k equal on all ranks.
            answer: called on the master with the numbers by rank, shape (size, k); returns float64, shape
                (length,). It must not raise, because the other ranks wait for it.
            length: length of the answer, equal on all ranks.

        Returns: the answer, equal on all ranks.
        """

    def meet(self) -> None:
        """Wait for all ranks of the group, without burning a core, unless they have met in `consult`."""

    def close(self) -> None:
        """Free what the collective holds; collective over the group."""


class LocalCollective(GradientCollective):
    """The collective of a group of one rank, with nothing to sum."""

    size = 1
    rank = 0
    meets = True

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """Return the same tensors, without a copy."""
        return tensors, status.astype(np.float64)

    def exchange(self, numbers: Array) -> None:
        """Do nothing: the numbers are the sums."""

    def tell(self, numbers: Array) -> None:
        """Do nothing: there are no other ranks."""

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        return answer(numbers[np.newaxis])

    def meet(self) -> None:
        """Do nothing: there are no other ranks."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class Batch(Protocol):
    """Samples of one rank for one step, as `hpcbal.dataplane.reader.Batch` holds them.

    Attributes:
        ids: sample ids, int64, shape (n,), n >= 0.
        x: samples, shape (n, *sample shape), or a list of n arrays if their shapes differ.
        y: labels, shape (n, *label shape).
        work: in samples of mean size.
        padding_limit: how many times as long as the longest sample padding may make all samples, >= 1; inf:
            no limit.
    """

    @property
    def ids(self) -> Array: ...

    @property
    def x(self) -> Array | list[Array]: ...

    @property
    def y(self) -> Array: ...

    @property
    def work(self) -> float: ...

    @property
    def padding_limit(self) -> float: ...


def are_shares(label: LabelSpec, num_classes: int) -> bool:
    """Whether labels can be distributions over the classes, as those of mixed samples are."""
    return label.shape == (num_classes,) and np.dtype(label.dtype).kind == "f"


_NO_STATES: Array = np.zeros(0)

Predictions = Array | Mapping[str, Array]
"""Predictions for samples, float64, shape (n, ...); of several outputs by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over samples, never means: sums of uneven shares add up, means do not.

    Attributes:
        loss: sum of the samples' losses, each times its weight.
        count: samples, >= 0.
        states: sums behind the DNN's metrics, float64, shape (`Replica.num_states`,); shape (0,) also stands
            for zeros.
    """

    loss: float = 0.0
    count: int = 0
    states: Array = field(default_factory=lambda: _NO_STATES)

    def __add__(self, other: Sums) -> Sums:
        if not len(self.states) or not len(other.states):
            states = self.states if len(self.states) else other.states
        else:
            states = self.states + other.states
        return Sums(self.loss + other.loss, self.count + other.count, states)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sums):
            return NotImplemented
        same = self.loss == other.loss and self.count == other.count
        return same and np.array_equal(self.states, other.states)

    __hash__ = None  # type: ignore[assignment]

    @property
    def mean_loss(self) -> float:
        """Mean loss; NaN without samples."""
        return self.loss / self.count if self.count else float("nan")


@dataclass(frozen=True, slots=True)
class Contribution:
    """One rank's share of a step.

    Attributes:
        tensors: in the backend's own type; their sum over the ranks of the group is passed to `apply`. All
            have one floating-point type, and the same shapes in the same order on every rank.
        sums: sums over this rank's samples.
    """

    tensors: Sequence[Any]
    sums: Sums


class Replica(Protocol):
    """One rank's copy of a DNN and its optimizer.

    Attributes:
        num_parameters: number of trainable numbers.
        num_bytes: size of everything that `state()` returns.
        broken: set by `finish_step` if an update failed half-way; reported with the next collective, and
            nothing is saved before.
        num_states: number of sums behind the DNN's metrics.
        exchange: for a model with synchronised layers, whose ranks meet within a step; `train_step` opens and
            closes it. None for all other models.
        warnings: what is probably a mistake in the model; sentences for users.
    """

    warnings: Sequence[str] = ()
    num_parameters: int
    num_bytes: int
    num_states: int
    broken: Exception | None
    exchange: StepExchange | None

    def compute(self, batch: Batch, num_samples_total: int, weight: float | None = None) -> Contribution:
        """Compute gradients of sum(loss_i) / `num_samples_total` over this rank's samples; changes no weight.

        With `accumulate` of the DNN above 1 the samples are computed in slices (`slices.slices_of`), one
        after another, and what these add to the step is summed in their order.

        Args:
            batch: at least one sample.
            num_samples_total: samples of the whole step, over all ranks of the group, >= len(batch).
            weight: what the mean gradient of this rank's samples counts instead, 0..1, from [CHRONICA] Eq. 7;
                None: len(batch) / num_samples_total.

        Raises:
            NonFiniteError: if the loss or a gradient is NaN or infinite.
            MemoryError: if host or device memory is not enough.
        """

    def zeros(self) -> Contribution:
        """The contribution of an empty or failed share; needs no new memory."""

    def apply(self, tensors: Sequence[Any]) -> None:
        """Update the weights with contributions summed over the group."""

    def set_learning_rate(self, rate: float) -> None:
        """Use this learning rate, >= 0, from the next step on; first that of the optimizer's settings."""

    def take_skipped_steps(self) -> int:
        """Steps since the last call that changed nothing, because gradients overflowed in 16 bits."""
        return 0

    def train_alone(self, batch: Batch) -> Sums:
        """Do the whole step of a group of one rank: `compute` and `apply`, with the same result.

        A backend that can do both in one call overrides this.

        Args:
            batch: all samples of the step, at least one.

        Raises:
            NonFiniteError: as for `compute`; no weight has changed then.
            MemoryError: as for `compute`; the weights may have changed in part.
        """
        contribution = self.compute(batch, len(batch.ids))
        self.apply(contribution.tensors)
        return contribution.sums

    def evaluate(self, batch: Batch) -> Sums:
        """Evaluate at least one sample in inference mode: loss and metrics.

        Raises:
            NonFiniteError, MemoryError: as for `compute`.
        """

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Loss and metrics of the samples behind `sums`, by name; NaN without samples."""

    @property
    def links(self) -> Mapping[str, Link]:
        """How outputs become predictions, by output; empty if the backend has no outputs (emulated)."""
        return {}

    def predict(self, batch: Batch) -> Predictions:
        """Predictions for at least one sample in inference mode, by output if labels have names.

        They are what metrics see: the model's outputs, as probabilities if the loss takes logits. The labels
        of the batch are not used.

        Raises:
            InputError: if the backend has no outputs (emulated).
            MemoryError: as for `compute`.
        """

    def measure(self, y: Array, predictions: Predictions) -> Sums:
        """Evaluate given predictions like `evaluate`, without losses that the model adds.

        Args:
            y: labels of n samples, shape (n, *label shape).
            predictions: as `predict` returns them.

        Raises:
            InputError: if the backend has no outputs (emulated).
            UserCodeError: if a user's loss or metric raises.
        """

    def state(self) -> Arrays:
        """Copies of weights ("weights/...") and optimizer variables ("optimizer/..."), in stable order.

        With `ema` of the DNN, the weights are the averages, which `evaluate` and `predict` use, too; those
        that training goes on from are at `weights.TRAINED`.
        """

    def weights(self) -> Arrays:
        """The weights of `state()` alone; a backend overrides this to save the copies of the others."""
        return {name: array for name, array in self.state().items() if name.startswith("weights/")}

    def layers(self) -> Sequence[ModelLayer]:
        """The layers that hold the weights of `state()`; a backend that knows its layers overrides this."""
        return layers_by_name(self.weights())

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Load what `state()` returned, here or in another process; all or nothing.

        Raises:
            CheckpointError: if an array is missing, unknown, or has another shape or type; the message names
                it.
        """

    def resize(self, num_trainers: int) -> None:
        """From now on, train in a group of `num_trainers` >= 1 ranks; 1 after `build`."""

    def close(self) -> None:
        """Free memory; the replica must not be used afterwards."""


class Backend(Protocol):
    """Builds replicas.

    Attributes:
        name: name in the config.
        device: what computes, for people and for the key of measured rates.
        distributed: the backend of torch.distributed that sums tensors of PyTorch where they lie; None: none.
    """

    name: str
    device: str
    distributed: str | None = None

    def build(
        self,
        dnn: DnnConfig,
        sample: SampleSpec,
        num_classes: int,
        seed: int,
        on_device: Sequence[Affine] = (),
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> Replica:
        """Build a replica with initial weights that depend only on `seed` and `dnn.name`, or on `dnn.seed`.

        Args:
            dnn: the model, its arguments and its optimizer.
            sample: shape and type of one sample, as batches hold it.
            num_classes: labels that are classes are 0..num_classes-1; otherwise, the number of outputs.
            seed: seed of the run.
            on_device: what the replica does to samples before its model sees them, in order.
            label: shape and type of one label, as batches hold it.
            sample_weights: how much a sample counts in the loss, by id, >= 0, shape (samples of the
                dataset,); None: 1.

        Raises:
            InputError: if the model cannot be built from this config.
        """

    def learn(self, dnn: DnnConfig, rates: Mapping[int, float]) -> None:
        """Take in what is known of a DNN that has joined the run; most backends need nothing.

        Args:
            rates: its emulated rates, samples/s by number of slots.
        """
        return

    def close(self) -> None:
        """Free what the backend holds."""
