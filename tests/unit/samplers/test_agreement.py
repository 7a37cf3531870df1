"""Ranks that give their samplers unlike arguments: with a real store, and all ranks in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hpcbal.errors import SamplerError
from hpcbal.samplers import BalancedBatchSampler, torch_side

SIZES = [float(1 + 7 * i % 23) for i in range(50)]
AsRank = Callable[[int], None]


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[AsRank]:
    """A function that makes this process another rank of two, which has not made a sampler yet."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def become(rank: int) -> None:
        monkeypatch.setattr(torch_side, "replicas", lambda group: (2, rank))
        torch_side._num_made.clear()

    yield become
    dist.destroy_process_group()


def make(**more: Any) -> BalancedBatchSampler:
    return BalancedBatchSampler(more.pop("sizes", SIZES), more.pop("batch_size", 8), **more)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"sizes": SIZES[::-1]}, "sizes: got other values than another rank; give all ranks the same"),
        ({}, {"sizes": SIZES[:-1], "batch_size": 7}, "num_samples: got 49, but 50 on another rank"),
        ({}, {"batch_size": 10}, "batch_size: got 10, but 8 on another rank; give all ranks the same"),
        ({"seed": 3}, {}, "seed: got 0, but 3 on another rank"),
        ({}, {"shuffle": False}, "shuffle: got False, but True on another rank"),
        ({}, {"drop_last": True}, "drop_last: got True, but False on another rank"),
        ({}, {"cost": "sum"}, "cost: got other values than another rank"),
        ({}, {"cost": lambda sizes: sizes + 1e-9}, "cost: got other values than another rank"),
        ({"speeds": [1.0, 2.0]}, {"speeds": [2.0, 1.0]}, "speeds: got other values than another rank"),
        ({"speeds": "measured"}, {}, "speeds: got other values than another rank"),
        (
            {"speeds": "measured"},
            {"speeds": "measured", "policy": "lb-bsp-cpu"},
            "speeds: got other values than another rank",
        ),
        ({}, {"exchange_every": 4}, "exchange_every: got 4, but 10 on another rank"),
        ({}, {"max_per_rank": 7}, "max_per_rank: got 7, but None on another rank"),
        ({"max_cost_per_rank": 99}, {"max_cost_per_rank": 98}, "max_cost_per_rank: got 98.0, but 99.0 on"),
    ],
)
def test_unlike_arguments_are_refused(
    as_rank: AsRank, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    as_rank(0)
    make(**first)
    as_rank(1)
    with pytest.raises(SamplerError, match=re.escape(text)):
        make(**second)


def test_like_arguments_are_no_matter_of_their_type(as_rank: AsRank) -> None:
    for rank, sizes in enumerate((SIZES, torch.tensor(SIZES).double())):
        as_rank(rank)
        make(sizes=sizes, seed=rank * 0)
        make(sizes=SIZES[:40], speeds="measured")


def test_samplers_of_one_rank_alone_and_of_ranks_by_hand_are_not_compared(as_rank: AsRank) -> None:
    as_rank(0)
    make(num_replicas=2, rank=0, seed=5)
    make()
    as_rank(1)
    make()


def test_ranks_that_begin_at_unlike_steps_are_refused(as_rank: AsRank) -> None:
    as_rank(0)
    first = make()
    for place, _ in enumerate(first):
        assert first.share.step == place
    as_rank(1)
    second = make()
    next(iter(second))  # to look at a batch begins nothing
    assert second.share.step == 0
    second.load_state_dict({**second.state_dict(), "epoch": 2, "step": 3})
    steps = iter(second)
    next(steps), second.begin_step()
    next(steps)
    with pytest.raises(SamplerError, match="epoch: got 2, but 0 on another rank; begin all ranks at"):
        second.begin_step()


def test_measuring_loaders_that_read_ahead_unlike_far_are_refused(as_rank: AsRank) -> None:
    for rank in range(2):
        as_rank(rank)
        make().loader(SIZES, num_workers=rank)
        sampler = make(speeds="measured")
        sampler.loader(SIZES, num_workers=2)
        if rank == 0:
            sampler.loader(SIZES, num_workers=0)
            continue
        with pytest.raises(SamplerError, match="num_workers: got 2, but 0 on another rank; give the loaders"):
            sampler.loader(SIZES, num_workers=2)


class PlainStore(dist.Store):
    """A store in Python with what a process group needs, as that of `backend.collective: torch`."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, number: int) -> int:
        total = int(self.values.get(key, b"0")) + number
        self.values[key] = str(total).encode()
        return total

    def set_timeout(self, timeout: Any) -> None: ...

    def wait(self, keys: Any, timeout: Any = None) -> None: ...


def test_a_store_that_cannot_compare_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=PlainStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(torch_side, "replicas", lambda group: (2, 0))
        sampler = make()
        assert len(next(iter(sampler.loader(torch.arange(50))))) == sampler.share.num_samples
    finally:
        dist.destroy_process_group()
