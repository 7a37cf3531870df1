"""One rank's copy of a Keras model: one traced function computes, another applies.

Between the two is the all-reduce, outside the traced code: trainer groups can change without a new trace. The
batch axis has no fixed length, so shares of changing size are also traced only once. A group of one rank has
nothing to reduce, so a single function computes and applies there.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hpcbal.errors import InputError
from hpcbal.models.sync_batch_norm import exchange_length, summing_with, synchronised_layers
from hpcbal.training.backend import Batch, Contribution, Predictions, Replica, Sums
from hpcbal.training.devices import MAX_DRAWS_PER_STEP
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.keras.model import users_own
from hpcbal.training.keras.predicting import DeviceInput, Tensors, predictor
from hpcbal.training.keras.traced_step import (
    Gradients,
    LossScale,
    TracedExchange,
    all_finite,
    is_not_finite,
    memory_errors,
    numbers_of,
    stop_unless,
    sums_of,
)
from hpcbal.training.keras.trainable import (
    Averages,
    changing_variables,
    layers_of,
    moving_variances,
    named_variables,
)
from hpcbal.training.objective import Link
from hpcbal.training.outputs import ByOutput, Outputs
from hpcbal.training.rank_share import slices_of
from hpcbal.training.step_exchange import StepExchange
from hpcbal.training.weights import Array, Arrays, ModelLayer, check_fit, num_bytes


class TensorFlowReplica(Replica):
    """A Keras model and its optimizer; see `hpcbal.training.backend.Replica`.

    Synchronised layers sum over the group within `compute`; in a group of one they are plain layers.

    `compute` runs the model without changing it (Keras' stateless call). The change of the moving statistics
    (batch normalisation) travels as a difference, weighted n_j/n like the gradients, so that all ranks move
    them equally. The difference of a variance also includes the square of the mean's difference, so it
    becomes the variance of the whole step, including the variance between the ranks' means. Random layers
    (dropout) draw from their saved state, which `apply` advances equally on all ranks, salted with the
    share's first sample id, which differs between ranks.

    Args:
        model: a built model.
        optimizer: not built yet.
        objective: what is minimised and measured.
        inputs: turns batches into tensors.
        scaling: of the loss, for float16; None: the loss as it is.
        accumulate: slices in which a share is computed.
        ema: decay of the averages of the weights; None: there are none.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        objective: Outputs,
        inputs: DeviceInput,
        scaling: LossScale | None = None,
        accumulate: int = 1,
        ema: float | None = None,
    ) -> None:
        self.broken: Exception | None = None
        synchronised = synchronised_layers(model)
        length = exchange_length(synchronised) if synchronised else 0
        self.exchange = StepExchange(length, may_overflow=scaling is not None) if synchronised else None
        self.num_traces = 0
        self._model = model
        self._optimizer = optimizer
        self._objective = objective
        self.num_states = objective.num_states
        optimizer.build(model.trainable_variables)
        self._trainable = list(model.trainable_variables)
        self._accumulate = accumulate
        self._averages = Averages(self._trainable, ema)
        self._statistics, self._seeds, self.warnings = changing_variables(model)
        self._variances = moving_variances(model, [variable for _, variable in self._statistics])
        self._dtype = keras.config.floatx()
        self._scaling = scaling
        self._input = inputs
        variables = self._trainable + [v for _, v in self._statistics]
        shapes = [v.shape for v in variables] + ([()] if self._scaling is not None else [])
        self._zeros = [tf.zeros(shape, self._dtype) for shape in shapes]
        samples, labels = self._input.signature
        total = tf.TensorSpec([], self._dtype)
        sums = [tf.TensorSpec(shape, self._dtype) for shape in shapes]
        salt = tf.TensorSpec([], tf.int64)
        # Without autograph, errors in a user's `call` keep their own traceback; Keras does the same.
        traced = functools.partial(tf.function, autograph=False)
        steps = [samples, labels, total, salt]
        self._compute = traced(self._traced_compute, input_signature=steps)
        self._compute_together = traced(self._traced_compute_together, input_signature=steps)
        self._apply = traced(self._traced_apply, input_signature=[sums])
        self._train_alone = traced(self._traced_train_alone, input_signature=steps)
        self._evaluate = traced(self._traced_evaluate, input_signature=[samples, labels])
        self._predict = predictor(self._infer, self._input, objective.predictions)
        named = named_variables(model, optimizer)
        self._layers = layers_of(users_own(model), named)
        self._named = self._averages.named(named)
        if self._scaling is not None:
            self._named |= self._scaling.variables
        self.num_parameters = sum(int(np.prod(v.shape)) for v in self._trainable)
        self.num_bytes = num_bytes(self._shapes())

    def compute(self, batch: Batch, num_samples_total: int, weight: float | None = None) -> Contribution:
        is_met = self.exchange is not None and self.exchange.is_open
        compute = self._compute_together if is_met else self._compute
        divisor = num_samples_total if weight is None else len(batch.ids) / weight
        tensors: list[tf.Tensor] = []
        sums = Sums()
        with memory_errors():
            for part in slices_of(batch, self._accumulate):
                own, numbers = compute(*self._step_of(part, divisor))
                finite, *_ = values = numbers.numpy()
                of_part = sums_of(values[1:], part)
                if not finite:
                    raise NonFiniteError(
                        f"the loss ({of_part.mean_loss} per sample) or a gradient is not finite"
                    )
                sums += of_part
                for index, tensor in enumerate(tensors):  # one by one: no third list
                    own[index] += tensor
                tensors = own
        return Contribution(tensors, sums)

    def _step_of(self, batch: Batch, divisor: float) -> tuple[Any, ...]:
        """Arguments of a traced step: samples, labels, divisor of the loss, salt of random layers."""
        x, y = self._input.tensors(batch)
        return x, y, tf.constant(divisor, self._dtype), tf.constant(int(batch.ids[0]), tf.int64)

    def _traced_compute(
        self, x: Tensors, y: Tensors, total: tf.Tensor, salt: tf.Tensor, sums: TracedExchange | None = None
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        own = self._traced_gradients(x, y, total, salt)
        # An overflow in a synchronised layer may be masked (ReLU) before it reaches a weight of this rank.
        between = [] if sums is None else [tf.cast(sum_, self._dtype) for sum_ in sums.gradients]
        finite = all_finite(own.loss, own.gradients + between)
        differences = [own.after[i] - own.before[i] for i, _ in self._statistics]
        for variance, (mean, rate) in self._variances.items():
            differences[variance] += tf.square(differences[mean]) / rate
        differences = [own.share * difference for difference in differences]
        tensors, usable = own.gradients + differences, finite
        if self._scaling is not None:
            usable = self._scaling.is_usable(own.loss, finite)
            tensors = self._scaling.contribution(tensors, finite)
        return tensors, numbers_of(usable, own.loss, *own.states)

    def _traced_gradients(self, x: Tensors, y: Tensors, total: tf.Tensor, salt: tf.Tensor) -> Gradients:
        self.num_traces += 1  # Python runs only while TensorFlow traces
        trainable = [tf.convert_to_tensor(v.value) for v in self._trainable]
        others = [tf.convert_to_tensor(v.value) for v in self._model.non_trainable_variables]
        for i, _ in self._seeds:  # (seed, counter) -> (seed + salt, counter)
            others[i] += tf.cast(tf.stack([salt, 0]), others[i].dtype)
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            outputs, moved, extra_losses = self._model.stateless_call(
                trainable, others, *self._input.for_model(x), training=True, return_losses=True
            )
            losses, loss = self._loss(y, outputs, extra_losses, training=True)
            share = tf.cast(tf.shape(y[0])[0], self._dtype) / total
            objective = loss / total
            if self._scaling is not None:
                objective *= self._scaling.scale
        found = tape.gradient(objective, trainable)
        if found and all(gradient is None for gradient in found):
            raise InputError(
                "no weight of the model has a gradient, allowed: a loss that depends on the outputs by "
                "operations that have gradients; remove argmax, round, comparisons, stop_gradient or NumPy "
                "from the loss"
            )
        gradients = [
            tf.zeros_like(value) if gradient is None else tf.convert_to_tensor(gradient)
            for value, gradient in zip(trainable, found, strict=True)
        ]
        states = self._objective.states(self._input.by_output(y), outputs, losses)
        return Gradients(gradients, loss, states, share, others, moved)

    def _loss(
        self, y: Tensors, outputs: Any, extra_losses: Sequence[tf.Tensor], *, training: bool
    ) -> tuple[ByOutput, tf.Tensor]:
        """The losses of samples by output, and their sum; what a model adds to its loss counts for each."""
        labels, weights = self._input.by_output(y), self._input.weights(y)
        losses = self._objective.losses(labels, weights, outputs=outputs, training=training)
        loss = tf.reduce_sum(self._objective.total(losses))
        if extra_losses:
            loss += tf.cast(tf.shape(y[0])[0], loss.dtype) * tf.add_n(list(extra_losses))
        return losses, loss

    def train_alone(self, batch: Batch) -> Sums:
        """One traced call, if there is one slice. It ends before any update if a gradient is not finite."""
        if self._accumulate > 1:
            return super().train_alone(batch)
        try:
            with memory_errors():
                values = self._train_alone(*self._step_of(batch, len(batch.ids))).numpy()
        except tf.errors.InvalidArgumentError as error:
            if is_not_finite(error):
                self.compute(batch, len(batch.ids))  # finds the same, and raises with the loss
            raise
        return sums_of(values, batch)

    def _traced_train_alone(self, x: Tensors, y: Tensors, total: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
        own = self._traced_gradients(x, y, total, salt)
        finite = all_finite(own.loss, own.gradients)
        usable = finite if self._scaling is None else self._scaling.is_usable(own.loss, finite)

        def apply(gradients: Sequence[tf.Tensor]) -> None:
            self._step(gradients)
            for i, variable in self._statistics:  # all samples of the step are here: no difference to share
                # A copy, because a model may keep a part of its input, which lies in memory of the ring.
                variable.value.assign(tf.raw_ops.DeepCopy(x=own.after[i]))

        with tf.control_dependencies([stop_unless(usable)]):
            self._update(own.gradients, finite, apply)
            self._advance_seeds()
            return numbers_of(own.loss, *own.states)

    def _step(self, gradients: Sequence[tf.Tensor]) -> None:
        """One step of the optimizer and of the averages; traced."""
        self._optimizer.apply(gradients, self._trainable)
        self._averages.update(tf.convert_to_tensor(self._optimizer.iterations.value))

    def _update(
        self, gradients: Sequence[tf.Tensor], finite: tf.Tensor, apply: Callable[[Sequence[tf.Tensor]], None]
    ) -> None:
        """Apply these gradients; if the loss is scaled, only finite ones, without the scale; traced."""
        if self._scaling is None:
            apply(gradients)
        else:
            unscaled = self._scaling.unscaled(gradients)
            self._scaling.update(finite, lambda: apply(unscaled))

    def _traced_compute_together(
        self, x: Tensors, y: Tensors, total: tf.Tensor, salt: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The same for a group, if the model's layers sum over its ranks; a rank alone does not need it."""
        assert self.exchange is not None
        sums = TracedExchange(self.exchange)
        with summing_with(sums.sum):
            return self._traced_compute(x, y, total, salt, sums)

    def zeros(self) -> Contribution:
        """Return tensors that were made with the replica."""
        return Contribution(self._zeros, Sums())

    def apply(self, tensors: Sequence[Any]) -> None:
        with memory_errors():
            self._apply([tf.convert_to_tensor(tensor) for tensor in tensors])

    def set_learning_rate(self, rate: float) -> None:
        self._optimizer.learning_rate = rate

    def _traced_apply(self, sums: list[tf.Tensor]) -> None:
        self.num_traces += 1
        num = len(self._trainable)
        differences = sums[num : num + len(self._statistics)]
        for variance, (mean, rate) in self._variances.items():
            least = -rate * self._statistics[variance][1].value  # for samples that do not vary at all
            difference = differences[variance] - tf.square(differences[mean]) / rate
            differences[variance] = tf.maximum(difference, least)

        def apply(gradients: Sequence[tf.Tensor]) -> None:
            self._step(gradients)
            for (_, variable), difference in zip(self._statistics, differences, strict=True):
                variable.value.assign_add(difference)

        self._update(
            sums[:num], tf.equal(sums[-1], 0.0) if self._scaling is not None else tf.constant(True), apply
        )
        self._advance_seeds()

    def _advance_seeds(self) -> None:
        for _, variable in self._seeds:
            variable.value.assign_add(tf.constant([0, MAX_DRAWS_PER_STEP], variable.value.dtype))

    def take_skipped_steps(self) -> int:
        return 0 if self._scaling is None else self._scaling.take_skipped()

    def evaluate(self, batch: Batch) -> Sums:
        x, y = self._input.tensors(batch)
        with memory_errors():
            sums = sums_of(self._evaluate(x, y).numpy(), batch)
        if not np.isfinite(sums.loss):
            raise NonFiniteError(f"the validation loss is {sums.mean_loss}")
        return sums

    def _traced_evaluate(self, x: Tensors, y: Tensors) -> tf.Tensor:
        self.num_traces += 1
        outputs, _, extra_losses = self._model.stateless_call(
            *self._evaluated(), *self._input.for_model(x), training=False, return_losses=True
        )
        losses, loss = self._loss(y, outputs, extra_losses, training=False)
        states = self._objective.states(self._input.by_output(y), outputs, losses)
        return numbers_of(loss, *states)

    def _evaluated(self) -> list[list[Any]]:
        """The weights that are evaluated, and all other variables of the model."""
        return [
            [v.value for v in own] for own in (self._averages.evaluated, self._model.non_trainable_variables)
        ]

    def _infer(self, *inputs: Any) -> Any:
        """The outputs of inference; traced."""
        return self._model.stateless_call(*self._evaluated(), *inputs, training=False)[0]

    def metrics(self, sums: Sums) -> dict[str, float]:
        return self._objective.results(sums)

    @property
    def links(self) -> Mapping[str, Link]:
        return self._objective.links

    def predict(self, batch: Batch) -> Predictions:
        with memory_errors():
            return self._predict(batch)

    def measure(self, y: Array, predictions: Predictions) -> Sums:
        with memory_errors():
            given = tf.nest.map_structure(lambda each: tf.constant(each, self._dtype), predictions)
            outputs = self._objective.outputs_of(given)
            labels = {name: tf.convert_to_tensor(part) for name, part in self._input.labels_of(y).items()}
            losses = self._objective.losses(labels, outputs=outputs, training=False)
            total = tf.reduce_sum(self._objective.total(losses))
            numbers = numbers_of(total, *self._objective.states(labels, outputs, losses)).numpy()
        return Sums(float(numbers[0]), len(y), numbers[1:])

    def state(self) -> Arrays:
        return {name: np.array(variable.numpy()) for name, variable in self._named.items()}

    def weights(self) -> Arrays:
        return {name: np.array(v.numpy()) for name, v in self._named.items() if name.startswith("weights/")}

    def layers(self) -> list[ModelLayer]:
        return self._layers

    def _shapes(self) -> Arrays:
        """Arrays like those of `state()`, but without memory."""
        return {
            name: np.broadcast_to(np.zeros((), v.dtype), tuple(v.shape)) for name, v in self._named.items()
        }

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        check_fit(arrays, self._shapes())
        for name, variable in self._named.items():
            variable.assign(arrays[name])

    def resize(self, num_trainers: int) -> None:
        """Do nothing: nothing here depends on the size of the group."""

    def close(self) -> None:
        """Drop model, optimizer and traced functions, which have circular references."""
        traced = ("_compute", "_compute_together", "_apply", "_train_alone", "_evaluate", "_predict")
        for name in ("_model", "_optimizer", "_averages", *traced):
            self.__dict__.pop(name, None)
        self._trainable, self._statistics, self._seeds, self._zeros, self._named = [], [], [], [], {}
        gc.collect()
