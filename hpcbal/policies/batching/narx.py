"""Predict speeds by small NARX networks, one per worker, and fit them to what the workers did."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.lb_bsp_cpu import Memoryless, SpeedHistory, SpeedPredictor
from hpcbal.policies.batching.time_curves import FloatArray

LOOK_BACK = 2  # d_v = d_c = d_m
NUM_INPUTS = LOOK_BACK + 2 * (LOOK_BACK + 1)
NUM_HIDDEN = 6
# Weights from inputs to hidden units, their biases, from these and from inputs to the output, its bias.
_ENDS = np.cumsum([NUM_INPUTS * NUM_HIDDEN, NUM_HIDDEN, NUM_HIDDEN, NUM_INPUTS])
NUM_WEIGHTS = int(_ENDS[-1]) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Narx(SpeedPredictor):
    """Fitted networks, one per worker: the next speed from the last two and from CPU and memory.

    Inputs and outputs are square roots of speeds: an error of one sample/s then counts more for a slow
    worker, and all others wait for the slow ones. The network has one hidden layer of tanh units, and direct
    weights from inputs to output for the linear part. The last speed answers for a worker that was not
    fitted, or whose CPU or memory was not measured, and where the history is shorter than the look-back.

    Attributes:
        input_mean, input_scale: of the inputs, shape (num_workers, NUM_INPUTS).
        weights: of all layers, shape (num_workers, NUM_WEIGHTS).
        speed_mean, speed_scale: of the roots, shape (num_workers,); the output is in scales from the mean,
            which is NaN for a worker that was not fitted.

    Source: [LBBSP] Eq. 4, Fig. 3 and Sec. 4. Deviations: the direct weights, the roots.
    """

    input_mean: FloatArray
    input_scale: FloatArray
    weights: FloatArray
    speed_mean: FloatArray
    speed_scale: FloatArray

    def predict(self, history: SpeedHistory) -> FloatArray:
        """Raises: PolicyError: the history has other workers than those that the networks were fitted to."""
        _check_same_workers(self, history)
        last = Memoryless().predict(history)
        if history.num_iterations <= LOOK_BACK:
            return last
        inputs = (narx_inputs(history.newest(LOOK_BACK + 1))[:, 0] - self.input_mean) / self.input_scale
        root = self.speed_mean + self.speed_scale * _output(self.weights, inputs)
        return np.where(np.isfinite(root), np.maximum(root, 0.0) ** 2, last)


def narx_inputs(history: SpeedHistory) -> FloatArray:
    """Return what the networks see after each iteration from number LOOK_BACK + 1 on.

    Returns: roots of the last two speeds, then CPU and memory now and in the last two iterations, each newest
        first; shape (num_workers, max(num_iterations - LOOK_BACK, 0), NUM_INPUTS).
    """
    end, roots = history.num_iterations, np.sqrt(history.speeds)
    series = [(roots, lag) for lag in range(LOOK_BACK)]
    series += [(part, lag) for part in (history.cpu, history.memory) for lag in range(LOOK_BACK + 1)]
    return np.stack([part[:, LOOK_BACK - lag : max(end - lag, 0)] for part, lag in series], axis=-1)


def _check_same_workers(model: Narx, history: SpeedHistory) -> None:
    num_fitted, num_workers = len(model.speed_mean), len(history.speeds)
    if num_fitted != num_workers:
        raise PolicyError(
            f"narx: the model was fitted to {num_fitted} workers, but the history has {num_workers}; "
            "fit a new model when a group changes"
        )


LEAST_ROWS = 40
MOST_ITERATIONS = 1000  # to fit to: more take longer and predict no better
RIDGE = 1e-3  # per row, of the linear model that a network starts from
PENALTY = 1e-3  # on squared weights, per squared unit of standardised error
MOST_STEPS, PATIENCE_STEPS = 15, 5
FIRST_DAMPING, MOST_DAMPING = 1e-2, 1e6
# Every fifth stretch of this many iterations is held out: single iterations would be too similar to their
# neighbours, and the newest ones may all be of one kind.
HELD_OUT_STRETCH = 20
HELD_OUT_EVERY = 5

# The attributes of `Narx` of one worker.
Network = tuple[FloatArray, ...]


def fit_narx(recording: SpeedHistory, previous: Narx | None = None) -> Narx:
    """Fit networks to a recording, with early stopping; takes some milliseconds per worker.

    A worker's network starts from that of `previous`, if given, so that a refit takes few steps; the scales
    of the inputs are then kept as well. Otherwise it starts from the best linear model, which fitting can
    then only improve. A worker with fewer than 40 complete rows keeps what it has; others are not fitted.

    Args:
        recording: of one group; its newest 1000 iterations count.
        previous: an earlier model for the same workers.

    Raises: PolicyError: if `previous` is for another number of workers.
    Source: [LBBSP] Sec. 3.2.2, Sec. 4. Deviations: the linear start; steps of Levenberg and Marquardt; see
        also `Narx`.
    """
    if previous is not None:
        _check_same_workers(previous, recording)
    rng, recording = np.random.default_rng(0), recording.newest(MOST_ITERATIONS)
    inputs, targets = narx_inputs(recording)[:, :-1], np.sqrt(recording.speeds[:, LOOK_BACK + 1 :])
    whole = np.isfinite(inputs).all(axis=2) & np.isfinite(targets)
    networks: list[Network] = []
    for worker, rows in enumerate(whole):
        before: Network | None = None
        if previous is not None and np.isfinite(previous.speed_mean[worker]):
            before = tuple(getattr(previous, part.name)[worker] for part in fields(Narx))
        networks.append(_fit_worker(inputs[worker, rows], targets[worker, rows], before, rng))
    return Narx(*map(np.stack, zip(*networks, strict=True)))


def _fit_worker(
    inputs: FloatArray, targets: FloatArray, before: Network | None, rng: np.random.Generator
) -> Network:
    """Fit one network to rows in the order of time, shapes (n, NUM_INPUTS) and (n,)."""
    if len(targets) < LEAST_ROWS:
        nothing = np.zeros(NUM_INPUTS), np.ones(NUM_INPUTS), np.zeros(NUM_WEIGHTS)
        return before or (*nothing, np.array(np.nan), np.array(1.0))
    if before is None:
        (input_mean, input_scale), (mean, scale) = _moments(inputs), _moments(targets)
        linear = _linear((inputs - input_mean) / input_scale, (targets - mean) / scale)
        hidden = rng.standard_normal((NUM_INPUTS, NUM_HIDDEN)) / np.sqrt(NUM_INPUTS)
        from_hidden = 0.01 * rng.standard_normal(NUM_HIDDEN)  # nearly idle
        weights = np.concatenate([hidden.ravel(), np.zeros(NUM_HIDDEN), from_hidden, linear, [0.0]])
    else:
        input_mean, input_scale, weights, mean, scale = before
    weights = _train((inputs - input_mean) / input_scale, (targets - mean) / scale, weights)
    return input_mean, input_scale, weights, mean, scale


def _moments(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations along the first axis; a deviation is 1 if nothing varies."""
    mean, spread = np.asarray(values.mean(axis=0)), np.asarray(values.std(axis=0))
    return mean, np.where(spread > 1e-9 * np.maximum(np.abs(mean), 1e-9), spread, 1.0)


def _linear(inputs: FloatArray, targets: FloatArray) -> FloatArray:
    """Weights of the ridge regression of standardised targets on standardised inputs."""
    ridge = RIDGE * len(inputs) * np.eye(NUM_INPUTS)
    solution: FloatArray = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets)
    return solution


def _train(inputs: FloatArray, targets: FloatArray, weights: FloatArray) -> FloatArray:
    """Return, of all weights on the way to the best fit, those with the least error on the rows held out."""
    held_out = _held_out(len(targets))
    seen, wanted = inputs[~held_out], targets[~held_out]

    def error(of: FloatArray, rows: npt.NDArray[np.bool_]) -> float:
        return float(np.square(_output(of, inputs[rows]) - targets[rows]).mean())

    def loss(of: FloatArray) -> float:
        return error(of, ~held_out) + PENALTY * float(of @ of)

    best, least, now = weights, error(weights, held_out), loss(weights)
    damping, waited = FIRST_DAMPING, 0
    for _ in range(MOST_STEPS):
        slopes, missed_by = _slopes(weights, seen), _output(weights, seen) - wanted
        # Not `@`: for arrays of this size BLAS starts threads, which spin on cores that other ranks train on.
        gradient = np.einsum("ni,n->i", slopes, missed_by) / len(seen) + PENALTY * weights
        curvature = np.einsum("ni,nj->ij", slopes, slopes) / len(seen)
        while damping <= MOST_DAMPING:
            damped = curvature + (PENALTY + damping) * np.eye(NUM_WEIGHTS)
            tried = weights - np.linalg.solve(damped, gradient)
            if (then := loss(tried)) < now:
                break
            damping *= 4.0
        else:
            return best  # no step improves the fit
        weights, now, damping = tried, then, damping / 4.0
        missed = error(weights, held_out)
        if missed < least:
            best, least, waited = weights, missed, 0
        elif (waited := waited + 1) == PATIENCE_STEPS:
            break
    return best


def _held_out(num_rows: int) -> npt.NDArray[np.bool_]:
    number = np.arange(num_rows)
    chosen: npt.NDArray[np.bool_] = number // HELD_OUT_STRETCH % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return chosen if chosen.any() else np.asarray(number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)


def _parts(weights: FloatArray) -> tuple[FloatArray, ...]:
    """Split weights, shape (..., NUM_WEIGHTS), by their use; the last part has shape (...)."""
    hidden, bias, from_hidden, direct, last = np.split(weights, _ENDS, axis=-1)
    by_input = hidden.reshape(*hidden.shape[:-1], NUM_INPUTS, NUM_HIDDEN)
    return by_input, bias, from_hidden, direct, last[..., 0]


def _output(weights: FloatArray, inputs: FloatArray) -> FloatArray:
    """Return the standardised output, shape (n,); the network is one for all inputs, or one for each."""
    hidden, bias, from_hidden, direct, last = _parts(weights)
    units = np.tanh(np.einsum("...i,...ih->...h", inputs, hidden) + bias)
    output: FloatArray = (units * from_hidden).sum(axis=-1) + (inputs * direct).sum(axis=-1) + last
    return output


def _slopes(weights: FloatArray, inputs: FloatArray) -> FloatArray:
    """Derivatives of the outputs of one network by its weights, shape (n, NUM_WEIGHTS)."""
    hidden, bias, from_hidden, _, _ = _parts(weights)
    units = np.tanh(np.einsum("ni,ih->nh", inputs, hidden) + bias)
    by_bias = (1.0 - units**2) * from_hidden
    by_hidden = (inputs[:, :, None] * by_bias[:, None, :]).reshape(len(inputs), -1)
    return np.hstack([by_hidden, by_bias, units, inputs, np.ones((len(inputs), 1))])
