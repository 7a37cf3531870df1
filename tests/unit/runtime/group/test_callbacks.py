"""The weights that a callback gets are those of its epoch, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.runtime.group.callbacks import Weights


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
