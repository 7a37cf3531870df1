"""A share that is computed in slices adds the same to a step, and holds only a slice at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_modules

from hpcbal.dataplane.reader import Batch
from hpcbal.errors import InputError
from hpcbal.training.backend import LocalCollective, Sums
from hpcbal.training.groups import GroupFailed
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.rank_share import slices_of
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]
BACKENDS = {"tensorflow": TensorFlowBackend, "torch": TorchBackend}
MODULES = {"tensorflow": "training_models", "torch": "torch_modules"}
RANDOM = {"tensorflow": "random", "torch": "dropping"}
MASKED = {"tensorflow": "hpcbal.models:temporal_cnn", "torch": "torch_modules:masked"}
STEPS = [
    (2, ((0, 9),)),
    (3, ((0, 0), (0, 4), (4, 9))),
    (20, ((0, 1), (1, 9))),
    (2, ((0, 3), (3, 6), (6, 9))),
]
"""Slices of a share, and the shares."""
ADAM = {"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.0, "clip_norm": 0.5}

both = pytest.mark.parametrize("framework", BACKENDS)


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(framework: str, model: str = "linear", precision: str = "float64", **given: Any) -> Any:
        dtype = "float64" if precision == "float64" else "float32"
        shape, weights = given.pop("shape", (6, 6, 1)), given.pop("weights", None)
        path = model if ":" in model else f"{MODULES[framework]}:{model}"
        backend = BACKENDS[framework](precision=precision)
        dnn, spec = make_dnn(model=path, **given), make_spec(shape=shape, dtype=dtype)
        return backend.build(dnn, spec, 5, 0, sample_weights=weights)

    return make


def cut(batch: Any, start: int, stop: int) -> Any:
    return type(batch)(batch.ids[start:stop], batch.x[start:stop], batch.y[start:stop])


def step(replica: Any, batch: Any, shares: Any) -> Sums:
    """A step of a group, whose ranks are computed one after another."""
    total = shares[-1][1]
    if len(shares) == 1:
        return train_step(replica, batch, total, LocalCollective()).sums
    parts = [
        replica.compute(cut(batch, *share), total) if share[0] < share[1] else replica.zeros()
        for share in shares
    ]
    replica.apply([sum(tensors) for tensors in zip(*(part.tensors for part in parts), strict=True)])
    return sum((part.sums for part in parts), Sums())


def assert_close_states(one: Any, other: Any, tolerance: float = 1e-10) -> None:
    first, second = one.state(), other.state()
    assert list(first) == list(second)
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("size", "number"), [(9, 1), (9, 2), (9, 4), (9, 9), (3, 7), (1, 2), (1000, 7)])
def test_slices_are_neighbours_whose_sizes_differ_by_at_most_one(size: int, number: int) -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(int(length), 2)) for length in rng.integers(1, 9, size)]
    batch = Batch(np.arange(size), x, rng.normal(size=size), work=3.5, padding_limit=1.25)
    found = list(slices_of(batch, number))
    sizes = [len(part.ids) for part in found]
    assert len(found) == min(number, size)
    assert (min(sizes), max(sizes)) == (size // len(found), math.ceil(size / len(found)))
    np.testing.assert_array_equal(np.concatenate([part.ids for part in found]), batch.ids)
    np.testing.assert_array_equal(np.concatenate([part.y for part in found]), batch.y)
    assert [id(each) for part in found for each in part.x] == [id(each) for each in x]
    assert sum(part.work for part in found) == pytest.approx(3.5)
    assert {part.padding_limit for part in found} == {1.25}


@both
@pytest.mark.parametrize(("accumulate", "shares"), STEPS)
def test_a_step_in_slices_is_that_of_all_samples(
    build: Make, make_batch: Make, framework: str, accumulate: int, shares: Any
) -> None:
    """Over uneven and empty shares, with weights of classes and of samples, smoothed labels and clipping."""
    weights = np.random.default_rng(1).uniform(0.0, 2.0, 9)
    given = {**ADAM, "class_weights": {0: 2.0, 3: 0.5}, "label_smoothing": 0.1, "weights": weights}
    whole, sliced = build(framework, **given), build(framework, accumulate=accumulate, **given)
    for number in range(4):
        batch = make_batch(9, number)
        expected, found = step(whole, batch, ((0, 9),)), step(sliced, batch, shares)
        assert found.loss == pytest.approx(expected.loss, rel=1e-11)
        assert (found.count, found.states.tolist()) == (9, expected.states.tolist())
    assert_close_states(whole, sliced)


@both
def test_series_are_padded_slice_by_slice(build: Make, framework: str) -> None:
    rng = np.random.default_rng(0)
    series = [rng.normal(size=(length, 3)) for length in (7, 40, 2, 11, 1)]
    batch = Batch(np.arange(5), series, rng.integers(0, 5, 5))
    given = {**ADAM, "shape": (None, 3)}
    whole, sliced = (build(framework, MASKED[framework], accumulate=k, **given) for k in (1, 3))
    for _ in range(3):
        expected, found = step(whole, batch, ((0, 5),)), step(sliced, batch, ((0, 2), (2, 5)))
        assert found.loss == pytest.approx(expected.loss, rel=1e-11)
    assert_close_states(whole, sliced)


@both
def test_the_weight_of_a_rank_is_shared_by_its_slices(build: Make, make_batch: Make, framework: str) -> None:
    whole, sliced = build(framework), build(framework, accumulate=3)
    for one, other in zip(*(r.compute(make_batch(7), 20, 0.4).tensors for r in (whole, sliced)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-11, atol=1e-13)


@both
def test_batch_normalisation_takes_slices_as_it_takes_shares(
    build: Make, make_batch: Make, framework: str
) -> None:
    """Each slice by its own mean and variance; running statistics and their counters as over ranks."""
    split, sliced = build(framework, "normalised"), build(framework, "normalised", accumulate=3)
    for number in range(3):
        batch = make_batch(8, number)
        batch.x[3:] += 5.0
        step(split, batch, ((0, 2), (2, 5), (5, 8)))
        step(sliced, batch, ((0, 8),))
    assert_close_states(split, sliced, 1e-12)


def test_a_torch_module_in_slices_is_a_plain_loop_over_them(build: Make, make_batch: Make) -> None:
    replica = build("torch", accumulate=3, optimizer="adamw", momentum=0.0, learning_rate=0.01)
    module = torch_modules.linear((1, 6, 6), 5).double()
    module.load_state_dict({name[8:]: torch.from_numpy(array) for name, array in replica.weights().items()})
    twin = torch.optim.AdamW(module.parameters(), lr=0.01)
    for number in range(4):
        batch = make_batch(8, number)
        train_step(replica, batch, 8, LocalCollective())
        x, y = torch.from_numpy(batch.x).permute(0, 3, 1, 2), torch.from_numpy(batch.y)
        for start, stop in ((0, 2), (2, 5), (5, 8)):
            logits = module(x[start:stop])
            (torch.nn.functional.cross_entropy(logits, y[start:stop], reduction="sum") / 8).backward()
        twin.step()
        twin.zero_grad()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(replica.weights()[f"weights/{name}"], tensor.numpy(), atol=1e-13)


@both
@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_a_model_sees_at_most_a_slice_at_once(
    build: Make, make_batch: Make, framework: str, accumulate: int
) -> None:
    replica, seen = build(framework, accumulate=accumulate), []
    tensors = replica._input.tensors if framework == "tensorflow" else replica.inputs.tensors

    def count(batch: Any) -> Any:
        seen.append(len(batch.ids))
        return tensors(batch)

    inputs = replica._input if framework == "tensorflow" else replica.inputs
    inputs.tensors = count
    step(replica, make_batch(16), ((0, 16),))
    step(replica, make_batch(16), ((0, 13), (13, 16)))
    assert max(seen) == math.ceil(16 / accumulate)
    assert sum(seen) == 32


def test_activations_take_the_memory_of_a_slice(build: Make, make_batch: Make) -> None:
    """Bytes that autograd has saved on the way forward, at a time."""

    def most(accumulate: int) -> int:
        replica = build("torch", "normalised", accumulate=accumulate)
        now, peak = 0, 0

        def pack(tensor: torch.Tensor) -> Any:
            nonlocal now, peak
            saved = Saved(tensor)
            now += saved.num_bytes
            peak = max(peak, now)
            return saved

        class Saved:
            def __init__(self, tensor: torch.Tensor) -> None:
                self.tensor = tensor
                self.num_bytes = tensor.numel() * tensor.element_size()

            def __del__(self) -> None:
                nonlocal now
                now -= self.num_bytes

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            train_step(replica, make_batch(64), 64, LocalCollective())
        return peak

    assert most(8) < 0.2 * most(1)


@both
def test_random_layers_draw_the_same_after_a_resume(build: Make, make_batch: Make, framework: str) -> None:
    first, second = (build(framework, RANDOM[framework], accumulate=3, **ADAM) for _ in range(2))
    step(first, make_batch(8, 0), ((0, 8),))
    second.load_state(first.state())
    for replica in (first, second):
        step(replica, make_batch(8, 1), ((0, 3), (3, 8)))
    assert_close_states(first, second, 0.0)


@both
def test_slices_draw_different_numbers(build: Make, make_batch: Make, framework: str) -> None:
    """The same samples twice: a slice draws by its first sample."""
    replica, batch = build(framework, RANDOM[framework], accumulate=2), make_batch(4)
    twice = type(batch)(np.arange(8), np.tile(batch.x, (2, 1, 1, 1)), np.tile(batch.y, 2))
    one = replica.compute(batch, 8).tensors
    both_halves = replica.compute(twice, 8).tensors
    assert not np.allclose(np.asarray(both_halves[0]), 2.0 * np.asarray(one[0]))


@both
def test_a_slice_that_is_not_finite_fails_the_step(build: Make, make_batch: Make, framework: str) -> None:
    replica, batch = build(framework, "normalised", accumulate=2), make_batch(4)
    before = replica.state()
    batch.x[3, 0, 0, 0] = np.nan
    with pytest.raises(GroupFailed, match="nan on this rank"):
        train_step(replica, batch, 4, LocalCollective())
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@both
@pytest.mark.parametrize("place", [0, 7])
def test_an_overflow_in_a_slice_skips_the_step(
    build: Make, make_batch: Make, framework: str, place: int
) -> None:
    replica = build(framework, accumulate=2, precision="mixed_float16")
    state = replica.state()
    replica.load_state({**state, "optimizer/loss_scale": np.array(2.0**40, np.float32)})
    before, batch = replica.weights(), make_batch(8, dtype="float32")
    batch.x[place] *= 1e3
    step(replica, batch, ((0, 8),))
    assert replica.take_skipped_steps() == 1
    for name, array in replica.weights().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_synchronised_layers_need_all_samples_at_once(build: Make) -> None:
    expected = "accumulate: got 2, allowed with synchronised layers: 1"
    with pytest.raises(InputError, match=expected):
        build("torch", "normalised", accumulate=2, kind="SyncBatchNorm")
    with pytest.raises(InputError, match=expected):
        build("tensorflow", "synchronised", accumulate=2)
