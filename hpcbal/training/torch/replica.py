"""A module of PyTorch and its optimizer as a replica: compute, apply, save, load."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import UNNAMED
from hpcbal.training.backend import Batch, Contribution, Predictions, Replica, Sums
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.objective import Link
from hpcbal.training.outputs import ByOutput, by_name
from hpcbal.training.slices import slices_of
from hpcbal.training.step_exchange import StepExchange
from hpcbal.training.torch.averages import Averages
from hpcbal.training.torch.batch_norm import GroupSums, exchange_length, synchronised
from hpcbal.training.torch.calls import ModuleCalls
from hpcbal.training.torch.inputs import AnyTensor, Tensors, TorchInput, mapped, view_of
from hpcbal.training.torch.loss_scale import LossScale
from hpcbal.training.torch.model import Checked
from hpcbal.training.torch.optimizers import OPTIMIZER, OptimizerState, make_optimizer
from hpcbal.training.torch.setup import memory_errors
from hpcbal.training.user_model import user_errors
from hpcbal.training.weights import Array, Arrays, check_fit, num_bytes

WEIGHTS = "weights/"
STEPS = f"{OPTIMIZER}steps"
"""Updates so far: random layers draw from it."""


class TorchReplica(Replica):
    """A module and its optimizer; see `hpcbal.training.backend.Replica`.

    Synchronised layers sum over the group within `compute`; in a group of one they are plain layers.

    What a forward pass changes besides gradients (running statistics) is taken back, and travels as a
    difference, weighted n_j/n like the gradients, so that all ranks move it equally. Random layers (dropout)
    draw from a generator that every step seeds anew from the DNN's seed, the number of updates so far and the
    first sample of the rank's share. So what they draw does not depend on kills, resumes and other DNNs. The
    same holds for what a module draws in inference, such as `functional.dropout` without `self.training`.

    A parameter that gets no gradient on any rank is left alone by the optimizer, as in PyTorch, where decay
    and momentum would move it otherwise. Which these are travels with the gradients.

    Attributes:
        module: the user's module.
        objective: what is minimised and measured.
        takes: arguments of its `forward` besides the samples.
        inputs: turns batches into tensors.
        dtype: of weights and outputs.

    Args:
        dnn: for messages, and its optimizer.
        module: on the CPU, checked.
        checked: what `hpcbal.training.torch.model.checked` has found.
        inputs: turns batches into tensors.
        seed: of random layers.
        dtype: of weights and outputs.
        device: where to compute.
        arithmetic: type of 16 bits in which layers compute; None: that of the weights.
    """

    def __init__(
        self,
        dnn: DnnConfig,
        module: torch.nn.Module,
        checked: Checked,
        inputs: TorchInput,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        arithmetic: torch.dtype | None = None,
    ) -> None:
        self.broken: Exception | None = None
        self.module = module.to(device)
        self.objective = checked.objective
        self.num_states = checked.objective.num_states
        self.warnings = checked.warnings
        self._dnn = dnn
        self.takes = checked.takes
        self._statistics = checked.statistics
        self.inputs = inputs
        self._frozen = checked.frozen
        self._seed = seed
        self.dtype = dtype
        self._device = device
        self._calls = ModuleCalls(dnn, self.module, checked.takes, dtype, arithmetic, checked.outputs)
        self._scaling = LossScale() if arithmetic == torch.float16 else None
        self._steps = 0
        self._is_training = module.training
        self.set_training(False)
        layers = [layer for layer in synchronised(module) if layer not in self._frozen]
        self.exchange: StepExchange | None = None
        self._sums: GroupSums | None = None
        if layers:
            self.exchange = StepExchange(exchange_length(layers), may_overflow=self._scaling is not None)
            self._sums = GroupSums(self.exchange)
            for layer in layers:
                layer.sums = self._sums
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._trainable = list(named.values())
        self._named = named
        self._averages = Averages(named, dnn.ema)
        self._rate = dnn.optimizer.learning_rate
        self._begin_optimizer()
        with user_errors(dnn, f"a first step of its optimizer {dnn.optimizer.name}"):
            self._optimizer_state.make()
        self._optimizer_shapes = {
            name: _like(array) for name, array in self._optimizer_state.arrays().items()
        }
        self._begin_optimizer()
        flag = [torch.zeros((), dtype=dtype, device=device)] if self._scaling is not None else []
        with torch.no_grad():
            moving = (*self._trainable, *self._statistics.tensors)
            used = torch.zeros(len(self._trainable), dtype=dtype, device=device)
            self._zeros = [torch.zeros_like(tensor, dtype=dtype) for tensor in moving] + [used, *flag]
        self.num_parameters = sum(parameter.numel() for parameter in self._trainable)
        self.num_bytes = num_bytes(self._shapes(with_optimizer=True))

    def _begin_optimizer(self) -> None:
        """Make an optimizer without a past."""
        self._optimizer = make_optimizer(self._dnn.name, self._dnn.optimizer, self._named)
        self._optimizer_state = OptimizerState(self._optimizer, self._named)
        self.set_learning_rate(self._rate)

    def compute(self, batch: Batch, num_samples_total: int, weight: float | None = None) -> Contribution:
        divisor = num_samples_total if weight is None else len(batch.ids) / weight
        with memory_errors():
            tensors, sums = self._computed(batch, divisor)
        return Contribution(tensors, sums)

    def _computed(self, batch: Batch, divisor: float) -> tuple[list[torch.Tensor], Sums]:
        """Return the tensors that samples add to a step, slice by slice, on the device, and their sums."""
        gradients: list[torch.Tensor | None] = []
        moved: list[torch.Tensor] = []
        total, all_finite = Sums(), True
        for part in slices_of(batch, self._dnn.accumulate):
            kept = self._statistics.kept()
            try:
                gradients, numbers = self._gradients(part, divisor, gradients)
                with torch.no_grad():
                    differences = self._statistics.differences(kept, len(part.ids) / divisor)
            finally:
                with torch.no_grad():
                    self._statistics.restore(kept)
            finite, sums = self._checked(numbers, part)
            total, all_finite = total + sums, all_finite and finite
            moved = [a + b for a, b in zip(moved, differences, strict=True)] if moved else differences
        used = torch.tensor([gradient is not None for gradient in gradients], dtype=self.dtype)
        tensors = [
            *(zero if own is None else own for own, zero in zip(gradients, self._zeros, strict=False)),
            *(difference.to(self.dtype) for difference in moved),
            used.to(self._device),
        ]
        if self._scaling is not None:
            if not all_finite:
                tensors = [torch.zeros_like(tensor) for tensor in tensors]
            tensors.append(torch.full_like(self._zeros[-1], 0.0 if all_finite else 1.0))
        return tensors, total

    def _gradients(
        self, batch: Batch, divisor: float, so_far: Sequence[torch.Tensor | None] = ()
    ) -> tuple[list[torch.Tensor | None], Array]:
        """Gradients of sum(loss) / divisor by trainable parameter, and: finite, loss, states of metrics.

        A gradient is None where the loss does not depend on the parameter.

        Args:
            so_far: gradients of other samples of the step, to which these are added in place.
        """
        tensors = self.inputs.tensors(batch)
        self.set_training(True)
        if self._sums is not None:
            self._sums.begin()
        self._seed_generators(_mixed(self._seed, self._steps, int(batch.ids[0])))
        losses, outputs = self._losses(tensors, "a training step", training=True)
        loss = self.objective.total(losses).sum()
        objective = loss / divisor
        if self._scaling is not None:
            objective = objective * self._scaling.scale
        for parameter, gradient in zip(self._trainable, so_far, strict=False):
            parameter.grad = gradient
        try:
            with user_errors(self._dnn, "computing its gradients"):
                objective.backward()
            gradients = [parameter.grad for parameter in self._trainable]
        finally:
            for parameter in self._trainable:
                parameter.grad = None
        with torch.no_grad():
            finite = torch.isfinite(_sum_of([each for each in gradients if each is not None]) + loss)
            numbers = _numbers(finite, loss, *self._states(tensors, outputs, losses))
        if self._sums is not None and not self._sums.are_finite:
            numbers[0] = 0.0
        return gradients, numbers

    def _losses(self, tensors: Tensors, doing: str, *, training: bool) -> tuple[ByOutput, AnyTensor | None]:
        """The losses of samples times their weights, by output, and the outputs, if they are known."""
        if self._calls.has_loss:
            losses, outputs = self._calls.losses(tensors, doing)
            weighted = self.objective.weighted(losses, tensors.y, tensors.weights, training=training)
            return weighted, outputs if training else None
        outputs = self._calls.outputs(tensors, doing)
        losses = self.objective.losses(tensors.y, tensors.weights, outputs=outputs, training=training)
        return losses, outputs

    def _states(self, tensors: Tensors, outputs: AnyTensor | None, losses: ByOutput) -> list[torch.Tensor]:
        """The sums behind the metrics; where outputs are not known, of those in inference."""
        if outputs is None:
            if not self.num_states:
                return []
            self.set_training(False)
            outputs = self._calls.outputs(tensors, "measuring its metrics")
        return self.objective.states(tensors.y, mapped(torch.Tensor.detach, outputs), losses)

    def set_training(self, training: bool) -> None:
        """Tell all modules whether they train; those that are frozen never do."""
        if training == self._is_training:
            return
        self.module.train(training)
        for part in self._frozen:
            part.eval()
        self._is_training = training

    def _seed_generators(self, seed: int) -> None:
        """Seed what random layers draw from: `torch.manual_seed` keeps a note for each kind of device."""
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            getattr(torch, self._device.type).manual_seed(seed)

    def _checked(self, numbers: Array, batch: Batch) -> tuple[bool, Sums]:
        """Whether all gradients are finite, and the sums of the batch.

        Raises:
            NonFiniteError: if they, or the loss, are not, unless a smaller scale of the loss may help.
        """
        finite, sums = bool(numbers[0]), _sums_of(numbers[1:], batch)
        usable = finite or (self._scaling is not None and self._scaling.may_shrink)
        if not usable or not np.isfinite(sums.loss):
            raise NonFiniteError(f"the loss ({sums.mean_loss} per sample) or a gradient is not finite")
        return finite, sums

    def train_alone(self, batch: Batch) -> Sums:
        """`compute` and `apply` without the way through differences of statistics, if there is one slice."""
        if self._dnn.accumulate > 1:
            with memory_errors():
                tensors, sums = self._computed(batch, len(batch.ids))
            self.apply(tensors)
            return sums
        kept = self._statistics.kept()
        with memory_errors():
            try:
                gradients, numbers = self._gradients(batch, len(batch.ids))
                finite, sums = self._checked(numbers, batch)
            except BaseException:
                with torch.no_grad():
                    self._statistics.restore(kept)
                raise
            if finite:
                self._statistics.settle(kept)
            else:
                with torch.no_grad():
                    self._statistics.restore(kept)
            self._update(gradients, finite=finite)
        return sums

    def zeros(self) -> Contribution:
        """Return tensors that were made with the replica."""
        return Contribution(self._zeros, Sums())

    def apply(self, tensors: Sequence[Any]) -> None:
        with memory_errors():
            sums = [_tensor_of(tensor, self._device) for tensor in tensors]
            num, num_moving = len(self._trainable), len(self._zeros) - (self._scaling is not None) - 1
            finite = self._scaling is None or not bool(sums[-1])
            if finite:
                with torch.no_grad():
                    self._statistics.apply(sums[num:num_moving])
            used = sums[num_moving].tolist()
            gradients = [own if number else None for own, number in zip(sums[:num], used, strict=True)]
            self._update(gradients, finite=finite)

    def _update(self, gradients: Sequence[torch.Tensor | None], *, finite: bool) -> None:
        """One step of the optimizer; if the loss is scaled, only with finite gradients."""
        if self._scaling is not None and finite:
            scale = self._scaling.scale
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
        if finite:
            for parameter, gradient in zip(self._trainable, gradients, strict=True):
                parameter.grad = gradient
            if self._dnn.optimizer.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self._trainable, self._dnn.optimizer.clip_norm)
            self._optimizer.step()
            for parameter in self._trainable:
                parameter.grad = None
            self._averages.update()
        if self._scaling is not None:
            self._scaling.update(finite=finite)
        self._steps += 1

    def set_learning_rate(self, rate: float) -> None:
        self._rate = rate
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def take_skipped_steps(self) -> int:
        return 0 if self._scaling is None else self._scaling.take_skipped()

    def evaluate(self, batch: Batch) -> Sums:
        tensors = self.inputs.tensors(batch)
        self.set_training(False)
        self._seed_generators(_mixed(self._seed, self._steps, int(batch.ids[0])))
        with memory_errors(), torch.no_grad(), self._averages.in_place():
            losses, outputs = self._losses(tensors, "an evaluation", training=False)
            total = self.objective.total(losses).sum()
            sums = _sums_of(_numbers(total, *self._states(tensors, outputs, losses)), batch)
        if not np.isfinite(sums.loss):
            raise NonFiniteError(f"the validation loss is {sums.mean_loss}")
        return sums

    def metrics(self, sums: Sums) -> dict[str, float]:
        return self.objective.results(sums)

    @property
    def links(self) -> Mapping[str, Link]:
        return self.objective.links

    def predict(self, batch: Batch) -> Predictions:
        tensors = self.inputs.tensors(batch)
        self.set_training(False)
        self._seed_generators(_mixed(self._seed, self._steps, int(batch.ids[0])))
        with memory_errors(), torch.no_grad(), self._averages.in_place():
            outputs = mapped(torch.Tensor.double, self._calls.outputs(tensors, "a prediction"))
            found: AnyTensor = self.objective.predictions(outputs)
        if isinstance(found, dict):
            return {name: each.cpu().numpy() for name, each in found.items()}
        array: Array = found.cpu().numpy()
        return array

    def measure(self, y: Array, predictions: Predictions) -> Sums:
        with memory_errors(), torch.no_grad():
            given = {
                name: torch.from_numpy(each).to(self.dtype) for name, each in by_name(predictions).items()
            }
            outputs = self.objective.outputs_of(given.get(UNNAMED, given))
            labels = {name: view_of(part) for name, part in self.inputs.labels(y).items()}
            losses = self.objective.losses(labels, outputs=outputs, training=False)
            total = self.objective.total(losses).sum()
            numbers = _numbers(total, *self.objective.states(labels, outputs, losses))
        return Sums(float(numbers[0]), len(y), numbers[1:])

    def state(self) -> Arrays:
        found = {**self.weights(), **self._optimizer_state.arrays(), **self._averages.arrays()}
        found[STEPS] = np.array(self._steps, np.int64)
        return found | ({} if self._scaling is None else self._scaling.arrays())

    def weights(self) -> Arrays:
        with self._averages.in_place():
            return {
                f"{WEIGHTS}{name}": tensor.detach().to("cpu", copy=True).numpy()
                for name, tensor in self.module.state_dict().items()
            }

    def _shapes(self, *, with_optimizer: bool) -> Arrays:
        """Arrays like those of `state()`, but without memory."""
        found = {
            f"{WEIGHTS}{name}": _like(tensor.detach().to("cpu").numpy())
            for name, tensor in self.module.state_dict().items()
        }
        found |= self._optimizer_shapes if with_optimizer else {}
        found |= {name: _like(array) for name, array in self._averages.arrays().items()}
        found[STEPS] = _like(np.array(0, np.int64))
        return found | ({} if self._scaling is None else self._scaling.arrays())

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        has_optimizer = not self._optimizer_shapes.keys().isdisjoint(arrays)
        parameters = {name.rpartition("/")[0] for name in arrays}  # others had no gradient yet
        shapes = self._shapes(with_optimizer=has_optimizer)
        check_fit(
            arrays,
            {
                name: array
                for name, array in shapes.items()
                if name not in self._optimizer_shapes or name.rpartition("/")[0] in parameters
            },
        )
        with torch.no_grad(), self._averages.in_place():
            for name, tensor in self.module.state_dict().items():
                tensor.copy_(torch.from_numpy(np.array(arrays[f"{WEIGHTS}{name}"])))
        self._averages.load(arrays)
        if has_optimizer:
            self._optimizer_state.make()
            self._optimizer_state.load(arrays)
        else:
            self._begin_optimizer()
        self._steps = int(arrays[STEPS])
        if self._scaling is not None:
            self._scaling.load(arrays)

    def resize(self, num_trainers: int) -> None:
        """Do nothing: nothing here depends on the size of the group."""

    def close(self) -> None:
        """Drop the module and its optimizer."""
        for name in ("module", "_optimizer", "_optimizer_state", "_statistics", "_calls", "_averages"):
            self.__dict__.pop(name, None)
        self._trainable, self._zeros, self._named = [], [], {}
        gc.collect()
        if self._device.type != "cpu":
            getattr(torch, self._device.type).empty_cache()


def _mixed(seed: int, steps: int, sample: int) -> int:
    """A number of 63 bits from three, which differs a lot if one of them differs a little.

    Source: the finaliser of SplitMix64 (G. L. Steele, D. Lea and C. H. Flood, OOPSLA 2014, Fig. 17).
    """
    state = 0
    for number in (seed, steps, sample):
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


MOST_GATHERED = 2**16
"""Gradients of at most this many numbers are gathered before they are summed, which costs less than a call
for each; copying large ones would cost more."""


def _sum_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of all numbers, which is not finite if one of them is not."""
    small = [gradient.reshape(-1) for gradient in gradients if gradient.numel() <= MOST_GATHERED]
    large = [gradient.sum().reshape(1) for gradient in gradients if gradient.numel() > MOST_GATHERED]
    return torch.cat(small + large).sum()


def _numbers(*tensors: torch.Tensor) -> Array:
    """All of them in one vector, float64, on the host."""
    found: Array = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]).cpu().numpy()
    return found


def _sums_of(values: Array, batch: Batch) -> Sums:
    """Loss and states of metrics, in this order, as the sums of a batch."""
    return Sums(float(values[0]), len(batch.ids), values[1:])


def _tensor_of(tensor: Any, device: torch.device) -> torch.Tensor:
    if torch.is_tensor(tensor):
        return tensor.to(device)
    array = np.asarray(tensor)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


def _like(array: Array) -> Array:
    """An array of the same shape and type, without memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)
