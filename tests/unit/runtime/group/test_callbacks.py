"""The weights that a callback gets are those of its epoch, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.config import DnnConfig
from hpcbal.errors import InputError
from hpcbal.events.history import EpochRecord
from hpcbal.runtime.group.callbacks import Callbacks, EpochEnd, Weights, check_callbacks


class Training:
    """A replica whose weights change in place."""

    def __init__(self) -> None:
        self.kernel = np.zeros(3)

    def weights(self) -> dict[str, np.ndarray]:
        return {"weights/dense/kernel": self.kernel.copy()}


def test_weights_that_were_looked_at_stay_those_of_the_epoch() -> None:
    replica: Any = Training()
    weights = Weights(replica)
    assert list(weights) == ["dense/kernel"]
    weights.close()
    replica.kernel += 1.0
    np.testing.assert_array_equal(weights["dense/kernel"], np.zeros(3))
    assert not weights["dense/kernel"].flags.writeable


def test_a_first_look_after_the_callbacks_raises_instead_of_showing_later_weights() -> None:
    weights = Weights(Training())  # type: ignore[arg-type]
    weights.close()
    with pytest.raises(RuntimeError, match=r"look at end.weights within the callback"):
        len(weights)


SEEN: list[str] = []


def note(end: EpochEnd) -> None:
    SEEN.append(f"{end.name} {end.epoch}")


def test_what_may_take_long_is_announced_by_name() -> None:
    dnn = DnnConfig.model_validate(
        {
            "name": "a",
            "model": "m:f",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "batch_size": 4,
            "stop": {"max_epochs": 3},
            "callbacks": [f"{__name__}:note"],
        }
    )
    announced: list[str] = []

    def announce(doing: str) -> None:
        announced.append(f"{len(SEEN)}: {doing}")

    Callbacks(dnn).end_epoch(Training(), EpochRecord(2, 1, {"loss": 1.0}, 0.5), announce)  # type: ignore[arg-type]
    assert SEEN == ["a 2"]
    assert announced == [f"0: in callback {__name__}:note of a after epoch 2"]


@pytest.mark.parametrize("name", ["collections:OrderedDict", "collections:Counter"])
def test_objects_that_cannot_be_called_are_refused_before_training(name: str) -> None:
    dnn = DnnConfig(
        name="a",
        model="m:f",
        optimizer={"name": "sgd", "learning_rate": 0.1},
        batch_size=4,
        stop={"max_epochs": 1},
        callbacks=["builtins:print", name],
    )
    with pytest.raises(InputError, match=f"DNN a: callback {name}: objects of this class cannot be called"):
        check_callbacks(dnn)
