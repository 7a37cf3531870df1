"""The emulated backend really learns, and takes the time in its rate table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcbal.training.emulated_backend as emulated_backend
from hpcbal.config.schema.ensemble import WorkerConfig
from hpcbal.data.arrays import Affine
from hpcbal.errors import CheckpointError, InputError
from hpcbal.models import EmulatedModel, softmax
from hpcbal.training.backend import LocalCollective, Sums
from hpcbal.training.emulated_backend import EVALUATION_SPEEDUP, EmulatedBackend, EmulatedReplica
from hpcbal.training.groups import GroupFailed, NonFiniteError
from hpcbal.training.step import evaluate_step, train_step

Make = Callable[..., Any]


@pytest.fixture
def backend() -> EmulatedBackend:
    return EmulatedBackend({}, precision="float64")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time at which each wait ends; no test sleeps and the clock stands at 100 s."""
    deadlines: list[float] = []
    monkeypatch.setattr(emulated_backend, "_sleep_until", deadlines.append)
    monkeypatch.setattr(emulated_backend.time, "perf_counter", lambda: 100.0)
    return deadlines


def test_loss_falls_on_learnable_data(backend: EmulatedBackend, make_dnn: Make, make_spec: Make) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 200)
    x = rng.normal(size=(200, 6, 6, 1)) * 0.1
    x[np.arange(200), y, 0, 0] += 2.0
    batch = type("Batch", (), {"ids": y, "x": x, "y": y, "work": 200.0})()
    replica = backend.build(make_dnn(), make_spec(), 5, seed=0)
    first = replica.evaluate(batch)
    for _ in range(30):
        train_step(replica, batch, 200, LocalCollective())
    last = evaluate_step(replica, batch, LocalCollective()).sums
    assert last.mean_loss < 0.2 * first.mean_loss
    assert replica.metrics(last)["accuracy"] > 0.95


def test_step_lasts_its_samples_over_the_groups_rate(
    clock: list[float], make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    replica = EmulatedBackend({"dnn": {1: 100.0, 2: 180.0}}).build(make_dnn(), make_spec(), 5, seed=0)
    batch = make_batch(9)
    replica.compute(batch, 9)
    replica.resize(2)
    replica.compute(batch, 18)
    replica.evaluate(batch)
    assert clock == pytest.approx([100 + 9 / 100, 100 + 18 / 180, 100 + 18 / 180 / EVALUATION_SPEEDUP])


@pytest.mark.parametrize(("num_trainers", "summing_s"), [(1, 0.0), (2, 0.03)])
def test_a_groups_rate_includes_the_sum_of_its_gradients(
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    make_dnn: Make,
    make_spec: Make,
    make_batch: Make,
    num_trainers: int,
    summing_s: float,
) -> None:
    """The time of a step's sum is subtracted from the next step; a rank alone has no sum."""
    replica = EmulatedBackend({"dnn": {1: 100.0, 2: 100.0}}).build(make_dnn(), make_spec(), 5, seed=0)
    replica.resize(num_trainers)
    own = replica.compute(make_batch(10), 10)
    monkeypatch.setattr(emulated_backend.time, "perf_counter", lambda: 100.03)  # summed
    replica.apply(own.tensors)
    replica.compute(make_batch(10), 10)
    replica.compute(make_batch(10), 10)
    assert clock == pytest.approx([100.1, 100.13 - summing_s, 100.13])


def test_rate_of_an_unmeasured_group_size_follows_from_the_measured(
    clock: list[float], make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    replica = EmulatedBackend({"dnn": {1: 100.0}}).build(make_dnn(), make_spec(), 5, seed=0)
    replica.resize(3)
    replica.compute(make_batch(4), 12)
    assert 100 + 12 / 300 <= clock[0] < 100 + 12 / 100


def test_where_steps_are_split_by_speed_each_rank_has_its_part_of_the_rate(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    """A rank's waiting for others does not shorten its own next step; otherwise it would seem fast."""
    backend = EmulatedBackend({"dnn": {1: 100.0, 2: 180.0}}, by_share=["dnn"])
    replica = backend.build(make_dnn(), make_spec(), 5, seed=0)
    replica.resize(2)
    own = replica.compute(make_batch(9), 18)
    monkeypatch.setattr(emulated_backend.time, "perf_counter", lambda: 107.0)  # summed
    replica.apply(own.tensors)
    replica.compute(make_batch(9), 18)
    replica.compute(make_batch(3), 18)
    assert clock == pytest.approx([100.1, 107.1, 107.0 + 3 * 2 / 180.0])


def test_a_worker_with_its_own_speed_takes_the_time_of_its_share(
    clock: list[float], make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    worker = WorkerConfig(speed=0.5, launch_s=0.01, floor_s=0.08)
    backend = EmulatedBackend({"dnn": {1: 100.0, 2: 190.0}}, worker=worker)
    replica = backend.build(make_dnn(), make_spec(), 5, seed=0)
    replica.resize(2)
    replica.compute(make_batch(9), 50)
    replica.compute(make_batch(2), 50)
    replica.evaluate(make_batch(9))
    assert clock == pytest.approx([100.19, 100.08, 100 + 0.19 / EVALUATION_SPEEDUP])


def test_dnn_without_rates_does_not_wait(
    clock: list[float], backend: EmulatedBackend, make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    backend.build(make_dnn(), make_spec(), 5, seed=0).compute(make_batch(4), 4)
    assert clock == [100.0]


def test_weights_depend_on_seed_and_name_or_on_the_seed_of_the_dnn(
    backend: EmulatedBackend, make_dnn: Make, make_spec: Make
) -> None:
    def kernel(name: str, seed: int, own: int | None = None) -> np.ndarray:
        dnn = make_dnn(name=name, seed=own)
        return backend.build(dnn, make_spec(), 5, seed).state()["weights/softmax/kernel"]

    np.testing.assert_array_equal(kernel("a", 1), kernel("a", 1))
    assert not np.array_equal(kernel("a", 1), kernel("b", 1))
    assert not np.array_equal(kernel("a", 1), kernel("a", 2))
    np.testing.assert_array_equal(kernel("a", 1, own=0), kernel("b", 2, own=0))
    assert not np.array_equal(kernel("a", 1, own=3), kernel("a", 1, own=4))


@settings(max_examples=25, deadline=None)
@given(shares=st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any), seed=st.integers(0, 99))
def test_shares_add_up_to_the_whole_step(shares: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = sum(shares)
    x, y = rng.normal(size=(n, 4)), rng.integers(0, 3, n)

    def batch(start: int, stop: int) -> Any:
        return type("Batch", (), {"ids": y[start:stop], "x": x[start:stop], "y": y[start:stop]})()

    model = softmax((4,), 3)
    replica = EmulatedReplica(model, model.initial_parameters(rng), Plain(), None)
    whole = replica.compute(batch(0, n), n)
    stops = np.cumsum(shares)
    parts = [
        replica.compute(batch(stop - share, stop), n) if share else replica.zeros()
        for share, stop in zip(shares, stops, strict=True)
    ]
    for index, expected in enumerate(whole.tensors):
        np.testing.assert_allclose(sum(part.tensors[index] for part in parts), expected, atol=1e-12)
    assert sum(part.sums.count for part in parts) == n
    assert sum((part.sums for part in parts), Sums()).states.tolist() == whole.sums.states.tolist()


class Plain:
    name, learning_rate, momentum, weight_decay, nesterov = "sgd", 0.1, 0.0, 0.0, False


def test_gradient_matches_finite_differences() -> None:
    rng = np.random.default_rng(3)
    model = softmax((2, 3), 4)
    parameters = model.initial_parameters(rng)
    x, y = rng.normal(size=(5, 2, 3)), rng.integers(0, 4, 5)
    _, _, gradients = model.loss_and_gradient(parameters, x, y)
    for name, array in parameters.items():
        for index in np.ndindex(array.shape):
            moved = {key: value.copy() for key, value in parameters.items()}
            moved[name][index] += 1e-6
            slope = (model.loss(moved, x, y)[0] - model.loss(parameters, x, y)[0]) / 1e-6
            assert gradients[name][index] == pytest.approx(slope, abs=1e-4)


def test_state_round_trip_is_exact(
    backend: EmulatedBackend, make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    replica = backend.build(make_dnn(nesterov=True, weight_decay=0.01), make_spec(), 5, seed=0)
    for step in range(3):
        train_step(replica, make_batch(8, step), 8, LocalCollective())
    saved = replica.state()
    other = backend.build(make_dnn(nesterov=True, weight_decay=0.01), make_spec(), 5, seed=1)
    other.load_state(saved)
    for step in range(3, 6):
        for each in (replica, other):
            train_step(each, make_batch(8, step), 8, LocalCollective())
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, other.state()[name])
    assert not np.array_equal(saved["weights/softmax/bias"], replica.state()["weights/softmax/bias"])


def test_misfit_changes_nothing(backend: EmulatedBackend, make_dnn: Make, make_spec: Make) -> None:
    replica = backend.build(make_dnn(), make_spec(), 5, seed=0)
    before = replica.state()
    wrong = {name: array + 1 for name, array in before.items()}
    wrong["weights/softmax/bias"] = np.zeros(7)
    with pytest.raises(CheckpointError, match=r"layer softmax: bias is \(5,\), was \(7,\)"):
        replica.load_state(wrong)
    np.testing.assert_array_equal(replica.state()["weights/softmax/kernel"], before["weights/softmax/kernel"])


def test_nan_sample_is_an_error_that_names_the_cause(
    backend: EmulatedBackend, make_dnn: Make, make_spec: Make, make_batch: Make
) -> None:
    replica = backend.build(make_dnn(), make_spec(), 5, seed=0)
    batch = make_batch(3)
    batch.x[1] = np.nan
    with pytest.raises(NonFiniteError):
        replica.compute(batch, 3)
    with pytest.raises(NonFiniteError, match="validation loss"):
        replica.evaluate(batch)
    with pytest.raises(GroupFailed) as failed:
        train_step(replica, batch, 3, LocalCollective())
    assert (failed.value.cause, failed.value.local) == ("nan", True)


def test_samples_of_different_size_can_be_trained(
    backend: EmulatedBackend, make_dnn: Make, make_spec: Make
) -> None:
    samples = [np.full(shape, 200, np.uint8) for shape in [(3, 9, 1), (5, 5, 1), (40, 2, 1)]]
    replica = backend.build(make_dnn(max_features=16), make_spec((None, None, 1), "uint8"), 5, seed=0)
    batch = type("Batch", (), {"ids": np.arange(3), "x": samples, "y": np.array([0, 1, 2])})()
    outcome = train_step(replica, batch, 3, LocalCollective())
    assert outcome.sums.count == 3
    assert replica.num_parameters == 16 * 5 + 5


def test_integers_are_scaled_to_one() -> None:
    model = EmulatedModel(4, 2)
    np.testing.assert_array_equal(
        model.features(np.full((1, 2, 2), 255, np.uint8), np.dtype("float32")), np.ones((1, 4), np.float32)
    )


def test_unsupported_models_and_optimizers_are_refused(
    backend: EmulatedBackend, make_dnn: Make, make_spec: Make
) -> None:
    with pytest.raises(InputError, match="allowed with the emulated backend: 'sgd'"):
        backend.build(make_dnn(optimizer="adam"), make_spec(), 5, seed=0)
    with pytest.raises(InputError, match="returned bool, the emulated backend needs"):
        backend.build(make_dnn(model="operator:contains"), make_spec((3,)), 1, seed=0)


def test_failed_update_is_reported_by_the_next_step(
    backend: EmulatedBackend,
    make_dnn: Make,
    make_spec: Make,
    make_batch: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = backend.build(make_dnn(), make_spec(), 5, seed=0)

    def fail(tensors: object) -> None:
        raise MemoryError("no room for the update")

    monkeypatch.setattr(replica, "apply", fail)
    collective = LocalCollective()
    with pytest.raises(GroupFailed, match="no room for the update"):
        train_step(replica, make_batch(2), 2, collective)  # a rank alone knows at once
    collective.size = 2  # with the samples of both; in a group the sum is over when the update fails
    train_step(replica, make_batch(2), 2, collective)
    with pytest.raises(GroupFailed, match="no room for the update") as failed:
        evaluate_step(replica, make_batch(2), collective)
    assert failed.value.cause == "oom"


@pytest.mark.parametrize("varying", [False, True])
def test_operations_on_the_device_come_before_the_model(
    backend: EmulatedBackend, make_dnn: Make, make_spec: Make, make_batch: Make, varying: bool
) -> None:
    affine = Affine("float32", 1 / 64, 1.5)
    batch = make_batch(5, dtype="uint8")
    batch.x[:] = np.random.default_rng(0).integers(0, 256, batch.x.shape)
    done = type(batch)(batch.ids, affine.apply(batch.x), batch.y)
    if varying:
        batch, done = (type(each)(each.ids, list(each.x), each.y) for each in (batch, done))
    left = backend.build(make_dnn(), make_spec(dtype="uint8"), 5, 0, [affine])
    here = backend.build(make_dnn(), make_spec(dtype="float32"), 5, 0)
    for one, other in zip(left.compute(batch, 5).tensors, here.compute(done, 5).tensors, strict=True):
        np.testing.assert_array_equal(one, other)
    assert left.evaluate(batch) == here.evaluate(done)
