"""Give a replica the learning rate of each training step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpcbal.config import DnnConfig
from hpcbal.config.imports import load_object
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.policies.learning_rate import rate_of_step
from hpcbal.training.backend import Replica
from hpcbal.training.failure import USER_ERRORS
from hpcbal.user_code import summary
from hpcbal.values import EpochRecord


class LearningRates:
    """The learning rates of one DNN; the same on every rank of its group.

    Attributes:
        last: that of the last step that got one; None while the rate is constant.

    Args:
        dnn: its optimizer, batch size and stop rule.
        num_train: training samples of a pass, >= 1.
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

    def set_rate(self, replica: Replica, history: Sequence[EpochRecord], start: int) -> None:
        """Set the rate of the training step that begins at position `start` of a pass.

        If a schedule of the user's own raises, or returns no number from 0 on, the step fails on all ranks.

        Args:
            history: the epochs before it.
        """
        if self._schedule.is_constant:
            return
        try:
            rate = self._rate(history, start // self._dnn.batch_size)
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
