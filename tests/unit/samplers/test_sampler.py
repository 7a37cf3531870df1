"""The balanced sampler: errors, loaders, positions, and limits."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from hpcbal.errors import InputError, SamplerError
from hpcbal.samplers import BalancedBatchSampler

SIZES = [float(1 + 7 * i % 23) for i in range(50)]


def make(batch_size: int = 8, num_replicas: int = 2, rank: int = 0, **more: Any) -> BalancedBatchSampler:
    return BalancedBatchSampler(
        more.pop("sizes", SIZES), batch_size, num_replicas=num_replicas, rank=rank, **more
    )


class Squares(torch.utils.data.Dataset[int]):
    def __init__(self, length: int = len(SIZES)) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"sizes": []}, "sizes: got none, allowed: one number per sample"),
        ({"sizes": [1.0, math.nan]}, "sizes: size of sample 1: got nan, allowed: a finite number above 0"),
        ({"sizes": [1.0, 2.0, -3.0]}, "size of sample 2: got -3.0"),
        ({"sizes": [[1.0, 2.0]]}, "got an array of shape (1, 2), allowed: one number"),
        ({"sizes": torch.ones(3, requires_grad=True)}, "sizes: got Tensor, allowed: one number per sample"),
        ({"sizes": "long"}, "sizes: got str, allowed: one number per sample"),
        ({"sizes": [[1.0], [2.0, 3.0]]}, "sizes: got list, allowed: one number per sample"),
        ({"batch_size": 3, "num_replicas": 4}, "batch_size: got 3, allowed: at least 4, one sample for each"),
        ({"batch_size": 0}, "batch_size: got 0, allowed: a whole number, 1 or more"),
        ({"batch_size": 8.0}, "batch_size: got 8.0, allowed: a whole number"),
        ({"batch_size": True, "num_replicas": 1}, "batch_size: got True, allowed: a whole number"),
        ({"batch_size": 49}, "the last step of an epoch has 1 of 50 samples, fewer than the 2 ranks"),
        ({"batch_size": 51, "drop_last": True}, "got 51 for 50 samples with drop_last, so an epoch has no"),
        ({"rank": 2}, "rank: got 2, allowed: 0 to 1"),
        ({"rank": None}, "num_replicas, rank: got one of them, allowed: both, or neither"),
        ({"seed": -1}, "seed: got -1"),
        ({"seed": 2**63}, "seed: got 9223372036854775808, allowed: 0 to 9223372036854775807"),
        ({"drop_last": "no"}, "drop_last: got 'no', allowed: True or False"),
        ({"drop_last": -1}, "drop_last: got -1, allowed: True or False"),
        ({"shuffle": None}, "shuffle: got None, allowed: True or False"),
        ({"cost": "square"}, "cost: got 'square', allowed: 'padded', 'sum', or a function"),
        ({"cost": lambda sizes: -sizes}, "cost(sizes): size of sample 0: got -1.0"),
        ({"cost": lambda sizes: sizes[1:]}, "cost(sizes): got 49 numbers for 50 samples"),
        ({"speeds": [1.0]}, "speeds: got [1.0], allowed: a finite number above 0 for each of the 2 ranks"),
        ({"speeds": [1.0, 0.0]}, "speeds: got [1.0, 0.0]"),
        ({"speeds": "fast"}, "speeds: got 'fast'"),
        (
            {"speeds": "measured", "policy": "even"},
            "policy: got 'even', allowed: fitted, lb-bsp-cpu, lb-",
        ),
        ({"max_per_rank": 3}, "max_per_rank: got 3, allowed: at least 4, so that 2 ranks take a batch of 8"),
        ({"max_cost_per_rank": 22.0}, "max_cost_per_rank: got 22.0, but sample 13 alone costs 23"),
        ({"max_cost_per_rank": "a lot"}, "max_cost_per_rank: got 'a lot', but sample 13 alone costs 23"),
        ({"exchange_every": 0}, "exchange_every: got 0"),
    ],
)
def test_wrong_arguments_are_one_sentence(more: dict[str, Any], text: str) -> None:
    with pytest.raises(SamplerError, match=re.escape(text)) as caught:
        make(**more)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InputError)
    assert "\n" not in str(caught.value)


def test_processes_of_torchrun_must_be_connected_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SamplerError, match="WORLD_SIZE says 4 processes; call init_process_group"):
        BalancedBatchSampler(SIZES, 8)
    monkeypatch.delenv("WORLD_SIZE")
    assert BalancedBatchSampler(SIZES, 8).num_replicas == 1


def test_the_order_is_made_on_the_host_whatever_the_default_device() -> None:
    expected = list(make())
    torch.set_default_device("meta")
    try:
        assert list(make()) == expected
    finally:
        torch.set_default_device(None)


def test_importing_samplers_loads_nothing_heavy() -> None:
    program = (
        "import sys, hpcbal.samplers\n"
        "heavy = {'torch', 'mpi4py', 'tensorflow', 'keras', 'pydantic', 'h5py', 'yaml'}\n"
        "print(sorted(heavy & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == b"[]"


def costs_of(samplers: list[BalancedBatchSampler]) -> np.ndarray:
    """Work of each rank in each step."""
    steps = zip(*samplers, strict=True)
    return np.array([[sampler.share.cost for sampler in samplers] for _ in steps])


def test_ranks_of_unlike_speed_get_work_in_proportion() -> None:
    sizes = np.random.Generator(np.random.PCG64(0)).integers(10, 100, 4000).tolist()
    speeds = [1.0, 1.0, 2.0, 4.0]
    work = costs_of([make(200, 4, rank, sizes=sizes, speeds=speeds) for rank in range(4)])
    np.testing.assert_allclose(work.mean(0) / work.mean(), np.array(speeds) / 2, atol=0.1)


@pytest.mark.parametrize("cost", ["padded", "sum", lambda sizes: sizes + 0.001 * sizes**2])
def test_equal_ranks_get_equal_work(cost: Any) -> None:
    sizes = np.random.Generator(np.random.PCG64(0)).lognormal(5, 1, 4000)
    work = costs_of([make(200, 4, rank, sizes=sizes, cost=cost) for rank in range(4)])
    assert (work.max(1) / work.mean(1)).mean() < 1.1


def test_limits_of_a_rank_are_kept() -> None:
    samplers = [make(16, 2, rank, max_per_rank=9, max_cost_per_rank=23 * 9) for rank in range(2)]
    for shares in zip(*samplers, strict=True):
        assert max(map(len, shares)) <= 9
    with pytest.raises(SamplerError, match="does not fit on 2 workers with the given limits"):
        list(make(16, 2, 0, max_cost_per_rank=30))


def test_passes_follow_each_other_and_a_pass_left_early_begins_again() -> None:
    sampler, again = make(), make()
    first, second = list(sampler), list(sampler)
    assert first != second
    assert next(iter(again)) == next(iter(again)) == first[0]
    again.set_epoch(1)
    assert list(again) == second
    again.set_epoch(0)
    assert list(again) == first


def test_a_pass_ends_with_its_last_step_also_if_nobody_asks_for_more() -> None:
    sampler = make()
    first = [batch for batch, _ in zip(sampler, range(len(sampler)), strict=False)]
    for _ in range(len(first) - 1):
        sampler.begin_step()
    assert sampler.state_dict()["step"] == len(sampler) - 1
    sampler.begin_step()
    state = sampler.state_dict()
    assert (state["epoch"], state["step"]) == (1, 0)
    second = list(sampler)
    assert len(second) == len(first)
    assert second != first


def test_set_epoch_keeps_the_position_of_a_loaded_state() -> None:
    sampler = make()
    steps = list(sampler)
    sampler.load_state_dict(make().state_dict() | {"step": 3})
    sampler.set_epoch(0)
    assert next(iter(sampler)) == steps[3]
    assert list(sampler) == steps[3:]
    assert len(list(sampler)) == len(sampler) == len(steps)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_knows_the_step_however_far_its_workers_read_ahead(num_workers: int) -> None:
    sampler = make()
    loader = sampler.loader(Squares(), num_workers=num_workers)
    assert sampler.state_dict()["step"] == 0
    for step, batch in enumerate(loader):
        assert (sampler.share.step, sampler.share.num_samples) == (step, len(batch))
        state = sampler.state_dict()
        last = step == len(loader) - 1
        assert (state["epoch"], state["step"]) == ((1, 0) if last else (0, step + 1))
    loader.set_epoch(5)
    next(iter(loader))
    assert sampler.share.epoch == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_left_before_its_last_step_begins_again_however_far_workers_read_ahead(
    num_workers: int,
) -> None:
    sampler = make()
    loader = sampler.loader(Squares(), num_workers=num_workers)
    first = [batch.tolist() for _, batch in zip(range(len(loader) - 1), loader, strict=False)]
    assert next(iter(loader)).tolist() == first[0]
    assert sampler.share.epoch == 0


def test_another_epoch_that_was_set_is_the_position() -> None:
    """In plain numbers, which `torch.load` takes without code of NumPy."""
    sampler = make()
    list(sampler.loader(Squares()))
    sampler.set_epoch(np.int64(7))
    state = sampler.state_dict()
    assert (state["epoch"], state["step"], type(state["epoch"])) == (7, 0, int)
    assert make(drop_last=np.bool_(True)).state_dict()["drop_last"] is True


def test_a_plain_loader_without_workers_needs_no_help() -> None:
    sampler = make()
    for batch in torch.utils.data.DataLoader(Squares(), batch_sampler=sampler):
        assert sampler.scale(1.0) == sampler.scale(1.0) == len(batch) * 2 / sampler.share.num_global


def test_batches_drawn_ahead_are_refused_unless_the_step_is_told() -> None:
    sampler = make()
    steps = iter(sampler)
    with pytest.raises(SamplerError, match="no step has begun: draw a batch first"):
        _ = sampler.loss_scale
    with pytest.raises(SamplerError, match="begin_step: no batch was drawn"):
        sampler.begin_step()
    sampler = make()
    steps = iter(sampler)
    next(steps), next(steps)
    for ask in (lambda: sampler.loss_scale, sampler.state_dict, lambda: sampler.scale(1.0)):
        with pytest.raises(SamplerError, match=r"unknown which of 2 batches trains now.*sampler\.begin_step"):
            ask()
    sampler.begin_step()
    assert sampler.share.step == 0


def test_scaling_by_sizes_weighs_each_token_the_same() -> None:
    samplers = [make(rank=rank, speeds=[1.0, 3.0]) for rank in range(2)]
    for shares in zip(*samplers, strict=True):
        total = 0.0
        for sampler, share in zip(samplers, shares, strict=True):
            sizes = np.array(SIZES)[share]
            total += sampler.scale(float((sizes * sizes).sum() / sizes.sum()), by="sizes") / 2
        whole = np.array(SIZES)[[*chain(*shares)]]
        assert total == pytest.approx((whole * whole).sum() / whole.sum())
    with pytest.raises(SamplerError, match="by: got 'words', allowed: 'samples' or 'sizes'"):
        samplers[0].scale(1.0, by="words")


@pytest.mark.parametrize(
    ("dataset", "more", "text"),
    [
        (Squares(49), {}, "got 49 samples, but the sampler has sizes of 50"),
        (Squares(), {"batch_size": 4, "shuffle": True}, "got batch_size, shuffle; the sampler decides that"),
        (Squares(), {"in_order": False}, "in_order=False, allowed: True"),
        (Stream(), {}, "got an IterableDataset"),
        (
            pandas.DataFrame({"x": range(50)}),
            {},
            "dataset: got a DataFrame, whose indices are labels or columns, allowed: a dataset whose items",
        ),
        (iter(range(50)), {}, "dataset: got a range_iterator, allowed: a dataset with indices"),
    ],
)
def test_a_loader_that_does_not_fit_is_refused(dataset: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(SamplerError, match=text):
        make().loader(dataset, **more)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "state: got version 2, allowed: 1"),
        ({"seed": 4}, "saved with seed=4, but this sampler has 0"),
        ({"batch_size": 16}, "saved with batch_size=16, but this sampler has 8"),
        ({"num_samples": 51}, "saved with num_samples=51"),
        ({"step": 7}, "state: got step 7, allowed: 0 to 6"),
        ({"epoch": -1}, "epoch: got -1"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SamplerError, match=re.escape(text)):
        make().load_state_dict(make().state_dict() | change)


@pytest.mark.parametrize("state", [{}, [], None])
def test_no_state_is_refused(state: Any) -> None:
    with pytest.raises(SamplerError, match="allowed: the result of state_dict"):
        make().load_state_dict(state)


class BatchSamplerShard:
    """As accelerate's: hands every n-th step to this process."""

    def __init__(self, batch_sampler: Any, num_processes: int) -> None:
        self.batch_sampler, self.num_processes = batch_sampler, num_processes

    def __iter__(self) -> Iterator[list[int]]:
        for place, batch in enumerate(self.batch_sampler):
            if place % self.num_processes == 0:
                yield batch


class Skip:
    """As accelerate's loaders that begin within an epoch."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[list[int]]:
        yield from enumerate(self.batch_sampler)


@pytest.mark.parametrize("wrap", [lambda sampler: sampler, Skip])
def test_sharing_out_once_more_is_refused(wrap: Any) -> None:
    with pytest.raises(SamplerError, match="accelerate shares the sampler's steps out once more"):
        list(BatchSamplerShard(wrap(make()), 2))
    assert len(list(BatchSamplerShard(wrap(make()), 1))) == len(make())
    dispatcher = type("DataLoaderDispatcher", (Skip,), {})
    with pytest.raises(SamplerError, match=r"reads all batches on one rank \(dispatch_batches\)"):
        list(dispatcher(make()))


def test_without_pytorch_a_sampler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "hpcbal.samplers.torch_side", raising=False)
    with pytest.raises(
        SamplerError, match=r"need PyTorch, .*; install it with pip install 'hpcbal\[torch\]'"
    ):
        list(make())
