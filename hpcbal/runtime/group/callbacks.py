"""Act at steps and epochs of a replica: learning rates, and the user's functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from hpcbal import env
from hpcbal.config import DnnConfig
from hpcbal.config.imports import load_object
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.events.history import EpochRecord
from hpcbal.policies.learning_rate import rate_of_step
from hpcbal.training.backend import Replica
from hpcbal.training.groups import USER_ERRORS
from hpcbal.user_code import summary


class LearningRates:
    """The learning rates of one DNN; the same on every rank of its group.

    Attributes:
        last: that of the last step that got one; None while the rate is constant.

    Args:
        dnn: its optimizer, batch size and stop rule.
        num_train: training samples of the DNN in a pass, >= 1.
    """

    def __init__(self, dnn: DnnConfig, num_train: int) -> None:
        self._dnn = dnn
        self._steps_per_epoch = math.ceil(num_train / dnn.batch_size)
        more_is_better = dnn.stop.resolved_mode == "max"
        self._schedule = dnn.optimizer.rate_schedule(
            self._steps_per_epoch, dnn.stop.max_epochs, more_is_better=more_is_better
        )
        self._own = self._own_rate if self._schedule.decay == "own" else None
        self._call: Any = None
        self._takes_length = True
        self.last: float | None = None

    def set_rate(self, replica: Replica, history: Sequence[EpochRecord], num_before: int) -> None:
        """Set the rate of the training step that has `num_before` training samples before it in its epoch.

        If a schedule of the user's own raises, or returns no number from 0 on, the step fails on all ranks.

        Args:
            history: the epochs before it.
        """
        if self._schedule.is_constant:
            return
        try:
            rate = self._rate(history, num_before // self._dnn.batch_size)
        except (HpcbalError, MemoryError) as error:  # such as a callable that is not there
            replica.broken = error
            return
        if rate != self.last:
            replica.set_learning_rate(rate)
            self.last = rate

    def of_last_epoch(self, history: Sequence[EpochRecord]) -> float | None:
        """The rate of the last training step of the epoch that has just ended; None if the rate is constant.

        It is computed anew if a group resumed behind that step, among the validation samples.

        Args:
            history: ends with that epoch.
        """
        if self._schedule.is_constant or self.last is not None:
            return self.last
        try:
            return self._rate(history[:-1], self._steps_per_epoch - 1)
        except (HpcbalError, MemoryError):  # the next training step reports it
            return None

    def _rate(self, history: Sequence[EpochRecord], step_in_epoch: int) -> float:
        monitored: list[float] = []
        if self._schedule.decay == "plateau":
            monitored = [record.metrics.get(self._dnn.stop.watched, math.nan) for record in history]
        step = len(history) * self._steps_per_epoch + step_in_epoch
        return rate_of_step(self._schedule, step, self._steps_per_epoch, monitored, self._own)

    def _own_rate(self, step: int, steps_per_epoch: int) -> float:
        """Call the user's function, or the object that their class makes."""
        given = self._dnn.optimizer.schedule
        assert given is not None
        key = f"DNN {self._dnn.name}: optimizer.schedule"
        who = f"{key} {given.name}"
        try:
            if self._call is None:
                found = load_object(given.name)
                is_class = inspect.isclass(found)
                self._call = found(**given.args) if is_class else partial(found, **given.args)
                self._takes_length = _takes_two(self._call)
            arguments = (step, steps_per_epoch) if self._takes_length else (step,)
            rate = float(self._call(*arguments))
        except MemoryError:
            raise
        except HpcbalError as error:
            raise UserCodeError(f"{key}: {error}") from error
        except USER_ERRORS as error:
            raise UserCodeError(f"{who}: calling it for step {step} failed: {summary(error)}") from error
        if not (math.isfinite(rate) and rate >= 0.0):
            raise UserCodeError(f"{who}: it returned {rate} for step {step}, allowed: a number, 0 or more")
        return rate


def _takes_two(call: Callable[..., Any]) -> bool:
    """Whether it takes the steps of an epoch besides the step; schedules of Keras take the step only."""
    try:
        inspect.signature(call).bind(0, 1)
    except TypeError:
        return False
    except ValueError:  # a callable written in C, whose arguments are unknown
        return True
    return True


class Weights(Mapping[str, np.ndarray]):
    """The weights of a DNN as read-only arrays by Keras' path, copied when they are first looked at.

    Whoever looks for the first time after the callbacks have ended gets a RuntimeError: the weights are those
    of a later step by then. What was copied stays.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica: Replica | None = replica
        self._arrays: dict[str, np.ndarray] | None = None

    def close(self) -> None:
        """Copy nothing from now on."""
        self._replica = None

    def _all(self) -> dict[str, np.ndarray]:
        if self._arrays is None:
            if self._replica is None:
                raise RuntimeError(
                    "the weights of this epoch are gone; look at end.weights within the callback, and keep a "
                    "copy of what is needed later"
                )
            arrays = {}
            for name, array in self._replica.weights().items():
                array.flags.writeable = False
                arrays[name.removeprefix("weights/")] = array
            self._arrays = arrays
        return self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The argument of a callback.

    Attributes:
        name: name of the DNN.
        epoch: completed epochs, >= 1.
        metrics: loss and metrics of the epoch by name; `val_` for the validation samples.
        seconds: wall time of the epoch.
        weights: after the epoch, by Keras' path; see `Weights`.
    """

    name: str
    epoch: int
    metrics: Mapping[str, float]
    seconds: float
    weights: Mapping[str, np.ndarray]


class Callbacks:
    """The callbacks of one DNN on the master of its group; objects of classes live as long as the round.

    Args:
        dnn: its callbacks.
    """

    def __init__(self, dnn: DnnConfig) -> None:
        self._dnn = dnn
        self._made: list[tuple[str, Callable[[EpochEnd], object]]] | None = None

    def __bool__(self) -> bool:
        return bool(self._dnn.callbacks)

    def end_epoch(
        self, replica: Replica, record: EpochRecord, announce: Callable[[str], None] = lambda doing: None
    ) -> None:
        """Call them all, in the order of the configuration.

        Args:
            replica: the DNN.
            record: the epoch.
            announce: called with what is done next, which may take long or never end.

        Raises:
            UserCodeError: if one cannot be imported or made, or raises.
        """
        weights = Weights(replica)
        event = EpochEnd(self._dnn.name, record.epoch, dict(record.metrics), record.seconds, weights)
        if self._made is None:
            self._made = []
            for given in self._dnn.callbacks:
                make = partial(_make, given.name, env.expanded(given.args, f"callback {given.name}: args"))
                self._made.append((given.name, self._guarded(given.name, "making it", make)))
        try:
            for name, call in self._made:
                announce(f"in callback {name} of {self._dnn.name} after epoch {record.epoch}")
                self._guarded(name, f"epoch {record.epoch}", partial(call, event))
        finally:
            weights.close()

    def _guarded(self, name: str, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (HpcbalError, MemoryError):
            raise
        except USER_ERRORS as error:
            raise UserCodeError(
                f"DNN {self._dnn.name}: callback {name}: {doing} failed: {summary(error)}"
            ) from error


def check_callbacks(dnn: DnnConfig) -> None:
    """Check before training that what the callbacks name can be called at the end of an epoch.

    Raises:
        InputError: if a module, a name or a method `__call__` is missing.
        UserCodeError: if a module raises on import.
    """
    for given in dnn.callbacks:
        found: Any = load_object(given.name)
        if inspect.isclass(found) and not any("__call__" in vars(base) for base in found.__mro__):
            raise InputError(
                f"DNN {dnn.name}: callback {given.name}: objects of this class cannot be called, allowed: a "
                "function, or a class with __call__(self, end), which gets an EpochEnd (docs/training.md, "
                "Callbacks); classes for Keras' fit() do not work here"
            )


def _make(path: str, args: Mapping[str, Any]) -> Callable[[EpochEnd], object]:
    found: Any = load_object(path)
    if not inspect.isclass(found):
        return partial(found, **args)
    return cast("Callable[[EpochEnd], object]", found(**args))
