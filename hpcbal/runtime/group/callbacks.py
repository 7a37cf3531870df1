"""Call a user's functions at the end of each epoch, with the DNN's metrics and weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from hpcbal import env
from hpcbal.config import DnnConfig
from hpcbal.config.imports import load_object
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.training.backend import Replica
from hpcbal.training.failure import USER_ERRORS
from hpcbal.user_code import summary
from hpcbal.values import EpochRecord


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
    """What a callback gets.

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
