"""Speeds that a sampler measures, without processes: the ranks are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from hpcbal.errors import SamplerError
from hpcbal.samplers import BalancedBatchSampler
from hpcbal.samplers.torch_side import Stopwatch

SIZES = np.random.Generator(np.random.PCG64(3)).integers(10, 100, 6400).tolist()


class Threads:
    """Messages between threads, one of them each rank."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier = threading.Barrier(num_ranks, timeout=60)
        self._rows: list[list[float]] = [[] for _ in range(num_ranks)]
        self.num_meetings = 0

    def of_rank(self, rank: int) -> Any:
        meet = self._meet

        class OfRank:
            def gather(self, row: Sequence[float]) -> list[list[float]]:
                return meet(rank, row)

            def tell(self, row: Sequence[float]) -> list[float]:
                return meet(rank, row)[0]

        return OfRank()

    def _meet(self, rank: int, row: Sequence[float]) -> list[list[float]]:
        self._rows[rank] = list(row)
        if self._barrier.wait() == 0:
            self.num_meetings += 1
        rows = [list(each) for each in self._rows]
        self._barrier.wait()
        return rows


def train(speeds: Sequence[float], policy: str, has_time: bool = True) -> list[BalancedBatchSampler]:
    """An epoch in which each rank records the seconds that its work takes at its speed."""
    threads = Threads(len(speeds))
    samplers = []
    for rank in range(len(speeds)):
        sampler = BalancedBatchSampler(
            SIZES,
            64,
            num_replicas=len(speeds),
            rank=rank,
            speeds="measured",
            policy=policy,
            exchange_every=5,
        )
        sampler._ranks = threads.of_rank(rank)
        samplers.append(sampler)

    def one(rank: int) -> list[list[int]]:
        steps = []
        for indices in samplers[rank]:
            steps.append(indices)
            if has_time or rank:
                samplers[rank].record(0.01 + samplers[rank].share.cost / speeds[rank])
        return steps

    with ThreadPoolExecutor(len(speeds)) as pool:
        passes = list(pool.map(one, range(len(speeds))))
    assert sorted(index for steps in passes for step in steps for index in step) == list(range(len(SIZES)))
    return samplers


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-cpu"])
def test_measured_speeds_are_learnt_and_equal_on_all_ranks(policy: str) -> None:
    samplers = train([1.0, 1.0, 2.0, 4.0], policy)
    assert len({sampler.speeds for sampler in samplers}) == 1
    np.testing.assert_allclose(samplers[0].speeds, np.array([1, 1, 2, 4]) / 8, atol=0.04)


def test_without_measurements_of_a_rank_speeds_stay() -> None:
    assert {sampler.speeds for sampler in train([1.0, 4.0], "fitted", has_time=False)} == {(0.5, 0.5)}


def test_learnt_speeds_are_kept_for_the_same_number_of_ranks() -> None:
    (sampler, *_) = train([1.0, 3.0], "fitted")
    for num_replicas, kept in ((2, sampler.speeds), (4, (0.25,) * 4)):
        other = BalancedBatchSampler(SIZES, 64, num_replicas=num_replicas, rank=0, speeds="measured")
        other.load_state_dict(sampler.state_dict())
        assert other.speeds == pytest.approx(kept)


def test_speeds_that_are_not_measured_take_no_measurements() -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=2, rank=0, speeds=[1.0, 2.0])
    assert sampler.speeds == pytest.approx((1 / 3, 2 / 3))
    next(iter(sampler))
    for ask in (lambda: sampler.record(1.0), lambda: sampler.watch(torch.nn.Linear(1, 1))):
        with pytest.raises(SamplerError, match='make the sampler with speeds="measured"'):
            ask()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), None, "long"])
def test_seconds_out_of_range_are_refused(seconds: Any) -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=2, rank=0, speeds="measured")
    next(iter(sampler))
    with pytest.raises(SamplerError, match="seconds of a step: got"):
        sampler.record(seconds)


def test_ranks_that_are_not_connected_cannot_measure() -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=2, rank=0, speeds="measured", exchange_every=1)
    with pytest.raises(SamplerError, match=r"needs torch\.distributed: call init_process_group first"):
        list(sampler)
    assert len(list(BalancedBatchSampler(SIZES, 64, speeds="measured", exchange_every=1))) == 100


def test_a_stopwatch_ends_with_the_last_gradient() -> None:
    module = torch.nn.Linear(3, 1)
    watch = Stopwatch(module)
    module(torch.ones(2, 3)).sum().backward()
    assert watch.take() is None
    watch.begin()
    assert watch.take() is None
    watch.begin()
    began = time.perf_counter()
    module(torch.ones(2, 3)).sum().backward()
    ended = time.perf_counter()
    time.sleep(0.02)
    seconds = watch.take()
    assert seconds is not None
    assert 0 < seconds <= ended - began + 0.01
    assert watch.take() is None
    with pytest.raises(SamplerError, match="module without a parameter that is trained"):
        Stopwatch(torch.nn.ReLU())


def test_a_watched_module_is_measured_in_each_step() -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=1, rank=0, speeds="measured")
    module = torch.nn.Linear(1, 1)
    sampler.watch(module)
    for _ in range(5):
        for indices in sampler:
            sampler.scale(module(torch.ones(len(indices), 1)).sum()).backward()
            break
    assert sampler._measured is not None
    assert sampler._measured._sums[0] >= 3


def test_the_last_watched_module_counts_and_others_are_let_go() -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=1, rank=0, speeds="measured")
    modules = [torch.nn.Linear(1, 1) for _ in range(2)]
    for module in modules:
        sampler.watch(module)
    hooks = [module.weight._post_accumulate_grad_hooks for module in modules]  # type: ignore[attr-defined]
    assert [len(each) for each in hooks] == [0, 1]


@pytest.mark.parametrize(
    ("module", "shown"),
    [(None, "a NoneType"), (torch.nn.Linear, "the class Linear, not an object of it"), ([], "a list")],
)
def test_only_a_module_can_be_watched(module: Any, shown: str) -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=1, rank=0, speeds="measured")
    with pytest.raises(SamplerError, match=rf"watch: got {shown}, allowed: the torch\.nn\.Module"):
        sampler.watch(module)


def test_a_state_with_damaged_speeds_keeps_those_of_now() -> None:
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=2, rank=0, speeds="measured")
    sampler.load_state_dict(sampler.state_dict() | {"weights": 3})
    assert sampler.speeds == (0.5, 0.5)


def test_layers_that_wait_for_other_ranks_cannot_be_measured() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.SyncBatchNorm(1))
    BalancedBatchSampler(SIZES, 64, num_replicas=1, rank=0, speeds="measured").watch(module)
    sampler = BalancedBatchSampler(SIZES, 64, num_replicas=2, rank=0, speeds="measured")
    with pytest.raises(SamplerError, match=r"watch: got a module with SyncBatchNorm.*give the speeds"):
        sampler.watch(module)
