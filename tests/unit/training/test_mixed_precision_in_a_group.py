"""Steps in 16 bits of two ranks whose layers sum over both: overflows skip a step, and fail nobody."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from loopback import Meeting
from loopback_groups import LoopbackCollective

from hpcbal.training.groups import GroupFailed
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import StepOutcome, train_step

Make = Callable[..., Any]
SCALE = "optimizer/loss_scale"
TIMEOUT_S = 60.0
SHARES = ((0, 5), (5, 12))


def build(make_dnn: Make, make_spec: Make, model: str = "synchronised", **given: Any) -> Any:
    dnn = make_dnn(model=f"training_models:{model}", **given)
    return TensorFlowBackend(precision="mixed_float16").build(dnn, make_spec(dtype="float32"), 5, 0)


def step_together(replicas: list[Any], batch: Any) -> list[StepOutcome]:
    """One step of 12 samples on two ranks; each rank is a thread."""
    meeting = Meeting(2, TIMEOUT_S)

    def play(rank: int) -> StepOutcome:
        first, end = SHARES[rank]
        own = type(batch)(batch.ids[first:end], batch.x[first:end], batch.y[first:end])
        return train_step(replicas[rank], own, 12, LoopbackCollective(rank, meeting))

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(play, range(2), timeout=TIMEOUT_S))


def set_scale(replica: Any, scale: float) -> dict[str, np.ndarray]:
    """Returns the rest of the state."""
    state = replica.state() | {SCALE: np.array(scale, np.float32)}
    replica.load_state(state)
    return {name: array for name, array in state.items() if "loss_scale" not in name}


def test_an_overflow_within_a_synchronised_layer_skips_the_step(
    make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    """On the way back the scaled gradient overflows before it reaches the layer, on one rank or on both."""
    replicas = [build(make_dnn, make_spec) for _ in range(2)]
    batch = make_batch(12, dtype="float32")
    before = [set_scale(replica, 2.0**40) for replica in replicas]
    outcomes = step_together(replicas, batch)
    assert [outcome.sums.count for outcome in outcomes] == [12, 12]
    for replica, state in zip(replicas, before, strict=True):
        assert float(replica.state()[SCALE]) == 2.0**39
        for name, array in state.items():
            np.testing.assert_array_equal(replica.state()[name], array, err_msg=name)
    for replica in replicas:
        set_scale(replica, 2.0**10)
    step_together(replicas, batch)
    for name, array in replicas[0].state().items():
        np.testing.assert_array_equal(replicas[1].state()[name], array, err_msg=name)
    kernel = next(name for name in before[0] if name.endswith("/kernel"))
    assert not np.array_equal(replicas[0].state()[kernel], before[0][kernel])


def test_what_overflows_without_a_scale_fails_all_ranks(
    make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    replicas = [build(make_dnn, make_spec) for _ in range(2)]
    batch = make_batch(12, dtype="float32")
    batch.x[7] = np.inf
    with pytest.raises(GroupFailed) as failed:
        step_together(replicas, batch)
    assert failed.value.cause == "nan"
