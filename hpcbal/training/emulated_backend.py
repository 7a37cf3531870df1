"""A backend without accelerators: steps take the time from a rate table, but the learning is real."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.data.arrays import Affine
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.policies.rates import RateTable
from hpcbal.training.backend import Backend, Batch, Contribution, Predictions, Replica, Sums, are_shares
from hpcbal.training.devices import dnn_seed
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.step_exchange import StepExchange
from hpcbal.training.user_model import make_model
from hpcbal.training.weights import Array, Arrays, check_fit, num_bytes

EVALUATION_SPEEDUP = 3.0
"""Inference needs one forward pass, training about three (forward, and twice backward)."""

WAKE_EARLY_S = 3e-4
"""How long before the end of a step to watch the emulated device instead of sleeping."""

_NO_OUTPUTS = "the emulated backend has no outputs; train with backend.name: auto"


class Model(Protocol):
    """The return value of a model function here; `hpcbal.models.EmulatedModel` is one."""

    def initial_parameters(self, rng: np.random.Generator) -> Arrays: ...

    def loss(self, parameters: Mapping[str, Array], x: Any, y: Array) -> tuple[float, int]: ...

    def loss_and_gradient(
        self, parameters: Mapping[str, Array], x: Any, y: Array
    ) -> tuple[float, int, Arrays]: ...


class WorkerSettings(Protocol):
    """How one emulated slot differs from others, as `hpcbal.config` holds it.

    Its time for x samples is max(floor_s, launch_s + x / (rate on 1 slot * speed)), the curves of [LBBSP]
    Sec. 3.3.1.
    """

    @property
    def speed(self) -> float: ...

    @property
    def launch_s(self) -> float: ...

    @property
    def floor_s(self) -> float: ...


class EmulatedReplica(Replica):
    """NumPy weights, SGD with momentum, and a clock; see `hpcbal.training.backend.Replica`.

    The rate of several trainers covers their whole step, including the sum of the gradients, as profiling
    would measure it ([FLEET] App. B.3). So the time that a group spends in that sum is subtracted from its
    next step.

    Args:
        model: computes losses and gradients.
        parameters: initial parameters; not copied.
        optimizer: learning rate, momentum, nesterov and weight decay are used.
        group_rate: samples/s of the whole trainer group by its number of ranks; None computes at full speed.
        worker: how this rank differs from others; a step then takes the time of the rank's own share, plus
            the sum of the gradients.
        by_share: the same without a worker; each rank of the group has an equal part of the group's rate.
        on_device: applied to samples before the model sees them.
    """

    def __init__(
        self,
        model: Model,
        parameters: Arrays,
        optimizer: OptimizerConfig,
        group_rate: Callable[[int], float] | None,
        worker: WorkerSettings | None = None,
        by_share: bool = False,
        on_device: Sequence[Affine] = (),
    ) -> None:
        self.broken: Exception | None = None
        self.exchange: StepExchange | None = None
        self.num_states = 1  # correct predictions
        self._model = model
        self._parameters = parameters
        self._optimizer = optimizer
        self._rate = optimizer.learning_rate
        self._velocity = {name: np.zeros_like(array) for name, array in parameters.items()}
        self._iteration = np.zeros((), np.int64)
        self._zeros = [np.zeros_like(array) for array in parameters.values()]
        self._group_rate = group_rate
        self._worker = worker
        self._by_share = by_share
        self._on_device = tuple(on_device)
        self._num_trainers = 1
        self._computed_s: float | None = None  # when the last step's own gradient was ready
        self._summing_s = 0.0  # time that the last step spent on the sum
        self.num_parameters = sum(array.size for array in parameters.values())
        self.num_bytes = num_bytes(self.state())

    def compute(self, batch: Batch, num_samples_total: int, weight: float | None = None) -> Contribution:
        """Takes `num_samples_total` / rate, including the sum of the gradients.

        With a worker, or `by_share`, it takes the time of the work of this rank's own share, plus the sum.
        """
        if self._worker is not None:
            deadline_s = self._own_deadline(self._worker, batch.work, 1.0)
        elif self._by_share:
            deadline_s = self._deadline(batch.work * self._num_trainers)
        else:
            deadline_s = self._deadline(num_samples_total) - self._summing_s
        self._summing_s = 0.0
        y = np.asarray(batch.y)
        loss, correct, gradients = self._model.loss_and_gradient(self._parameters, self._inputs(batch), y)
        divisor = num_samples_total if weight is None else len(y) / weight
        tensors = []
        for name, own in self._parameters.items():
            tensors.append(np.asarray(gradients[name] / divisor, own.dtype))
        if not np.isfinite(loss) or not all(np.isfinite(tensor).all() for tensor in tensors):
            raise NonFiniteError(f"the loss ({loss / len(y)} per sample) or a gradient is not finite")
        _sleep_until(deadline_s)
        self._computed_s = time.perf_counter()
        return Contribution(tensors, Sums(float(loss), len(y), np.array([correct], np.float64)))

    def zeros(self) -> Contribution:
        """Takes no time."""
        self._computed_s = None
        return Contribution(self._zeros, Sums())

    def apply(self, tensors: Sequence[Any]) -> None:
        """Heavy-ball momentum as in Keras: v = mu*v - lr*g, w += v; weight decay w *= 1 - lr*decay."""
        if self._num_trainers > 1 and self._computed_s is not None:
            self._summing_s = time.perf_counter() - self._computed_s
        rate, momentum = self._rate, self._optimizer.momentum
        tensors = clipped(tensors, self._optimizer.clip_norm)
        for (name, weights), tensor in zip(self._parameters.items(), tensors, strict=True):
            gradient = np.asarray(tensor)
            weights *= 1.0 - rate * self._optimizer.weight_decay
            velocity = momentum * self._velocity[name] - rate * gradient
            self._velocity[name] = velocity
            weights += momentum * velocity - rate * gradient if self._optimizer.nesterov else velocity
        self._iteration += 1

    def set_learning_rate(self, rate: float) -> None:
        self._rate = rate

    def evaluate(self, batch: Batch) -> Sums:
        """Takes the time of this rank's share at the group's rate, `EVALUATION_SPEEDUP` times faster."""
        y = np.asarray(batch.y)
        if self._worker is None:
            deadline_s = self._deadline(batch.work * self._num_trainers / EVALUATION_SPEEDUP)
        else:
            deadline_s = self._own_deadline(self._worker, batch.work, EVALUATION_SPEEDUP)
        loss, correct = self._model.loss(self._parameters, self._inputs(batch), y)
        if not np.isfinite(loss):
            raise NonFiniteError(f"the validation loss is {loss / len(y)}")
        _sleep_until(deadline_s)
        return Sums(float(loss), len(y), np.array([correct], np.float64))

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Loss and accuracy."""
        correct = float(sums.states[0]) if len(sums.states) else 0.0
        accuracy = correct / sums.count if sums.count else float("nan")
        return {"loss": sums.mean_loss, "accuracy": accuracy}

    def predict(self, batch: Batch) -> Array:
        """Always refused: what stands in for the model predicts nothing about the samples."""
        raise InputError(_NO_OUTPUTS)

    def measure(self, y: Array, predictions: Predictions) -> Sums:
        """Always refused, like `predict`."""
        raise InputError(_NO_OUTPUTS)

    def _inputs(self, batch: Batch) -> Array | list[Array]:
        """Return the input of the model."""
        x = batch.x
        for operation in self._on_device:
            x = [operation.apply(each) for each in x] if isinstance(x, list) else operation.apply(x)
        return x

    def _deadline(self, num_samples: float) -> float:
        start_s = time.perf_counter()
        if self._group_rate is None:
            return start_s
        return start_s + num_samples / self._group_rate(self._num_trainers)

    def _own_deadline(self, worker: WorkerSettings, num_samples: float, speedup: float) -> float:
        start_s = time.perf_counter()
        if self._group_rate is None:
            return start_s
        linear_s = worker.launch_s + num_samples / (self._group_rate(1) * worker.speed)
        return start_s + max(worker.floor_s, linear_s) / speedup

    def _live(self) -> Arrays:
        arrays = {f"weights/{name}": array for name, array in self._parameters.items()}
        arrays |= {f"optimizer/{name}/momentum": array for name, array in self._velocity.items()}
        arrays["optimizer/iteration"] = self._iteration
        return arrays

    def state(self) -> Arrays:
        return {name: array.copy() for name, array in self._live().items()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        live = self._live()
        check_fit(arrays, live)
        for name, array in live.items():
            array[...] = arrays[name]

    def resize(self, num_trainers: int) -> None:
        """Use the group's rate for this number of trainers."""
        self._num_trainers = num_trainers
        self._computed_s, self._summing_s = None, 0.0

    def close(self) -> None:
        """Drop the weights."""
        self._parameters, self._velocity, self._zeros = {}, {}, []


class EmulatedBackend(Backend):
    """Real softmax regression in emulated time; see `hpcbal.training.backend.Backend`.

    Args:
        rates: samples/s by number of trainers by DNN name; other numbers follow [FLEET] Eq. 5, and a DNN
            without rates is not slowed down.
        slots_per_node: used in Eq. 5.
        precision: "float32" or "float64".
        worker: how this rank's slot differs; None: all are alike.
        by_share: DNNs whose steps are not always split evenly (any policy but `even`): a rank's step takes
            the time of its share, plus the sum of the gradients.
    """

    name = "emulated"
    device = "emulated"

    def __init__(
        self,
        rates: Mapping[str, Mapping[int, float]],
        slots_per_node: int = 1,
        precision: str = "float32",
        worker: WorkerSettings | None = None,
        by_share: Collection[str] = (),
    ) -> None:
        self._rates = RateTable(rates, slots_per_node)
        self._dtype = np.dtype(precision)
        self._worker = worker
        self._by_share = frozenset(by_share)

    def learn(self, dnn: DnnConfig, rates: Mapping[int, float]) -> None:
        """Take in the rates of a DNN."""
        for num_slots, samples_per_s in rates.items():
            self._rates = self._rates.with_measurement(dnn.name, num_slots, samples_per_s)

    def build(
        self,
        dnn: DnnConfig,
        sample: SampleSpec,
        num_classes: int,
        seed: int,
        on_device: Sequence[Affine] = (),
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> EmulatedReplica:
        """A replica of a model with `loss_and_gradient`.

        Raises:
            InputError: if this backend does not support the model, the optimizer or the labels.
        """
        if sample_weights is not None:
            raise InputError("data.dataset: got sample_weights, which the emulated backend does not use")
        if dnn.freeze:
            raise InputError(
                f"DNN {dnn.name}: freeze: got {list(dnn.freeze)}, allowed with the emulated backend: []"
            )
        if dnn.ema is not None:
            raise InputError(f"DNN {dnn.name}: ema: got {dnn.ema}, allowed with the emulated backend: null")
        if sample.parts or label.parts:
            raise InputError(
                f"DNN {dnn.name}: samples have several named arrays or labels, allowed with the emulated "
                "backend: one array and one label; set backend.name to auto"
            )
        if not (label.is_class or are_shares(label, num_classes)):
            raise InputError(
                f"DNN {dnn.name}: labels of shape {label.shape} and type {label.dtype}, allowed with the "
                "emulated backend: one class per sample, or a distribution over classes"
            )
        if dnn.optimizer.name.lower() != "sgd":
            raise InputError(
                f"DNN {dnn.name}: optimizer.name: got {dnn.optimizer.name!r}, "
                "allowed with the emulated backend: 'sgd'"
            )
        model = make_model(dnn, tuple(sample.shape), num_classes)
        if not hasattr(model, "loss_and_gradient"):
            raise InputError(
                f"DNN {dnn.name}: model {dnn.model} returned {type(model).__name__}, the emulated backend "
                "needs an object with `loss_and_gradient`, such as hpcbal.models:softmax; "
                "for models of Keras or PyTorch set backend.name to auto"
            )
        initial = model.initial_parameters(np.random.default_rng(dnn_seed(seed, dnn.name, dnn.seed)))
        parameters = {name: np.array(array, self._dtype) for name, array in initial.items()}
        known = self._rates.measured.get(dnn.name)
        group_rate = partial(self._rates.rate, dnn.name) if known else None
        by_share = dnn.name in self._by_share
        return EmulatedReplica(
            model, parameters, dnn.optimizer, group_rate, self._worker, by_share, on_device
        )

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def clipped(tensors: Sequence[Any], clip_norm: float | None) -> Sequence[Any]:
    """Gradients, shortened to a global norm of at most `clip_norm`; None: as they are."""
    if clip_norm is None:
        return tensors
    norm = float(np.sqrt(sum(np.sum(np.square(tensor, dtype=np.float64)) for tensor in tensors)))
    return [tensor * (clip_norm / norm) for tensor in tensors] if norm > clip_norm else tensors


def _sleep_until(deadline_s: float) -> None:
    """Sleep until an absolute time, so that computing before it is part of the step, not added to it.

    A sleep ends a tenth of a millisecond late and wakes up with cold caches, unlike a device. So the last
    moments are spent yielding, like a host thread that waits for its device.
    """
    remaining_s = deadline_s - time.perf_counter()
    if remaining_s > WAKE_EARLY_S:
        time.sleep(remaining_s - WAKE_EARLY_S)
    while time.perf_counter() < deadline_s:
        os.sched_yield()
