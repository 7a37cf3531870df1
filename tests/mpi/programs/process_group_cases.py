"""Three trainers and a bystander: process groups of torch.distributed come, sum, fail and go with groups.

training_cases.py runs them, so that PyTorch is started only once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from training_harness import COMM, Bench, Partition

from hpcbal.comm.mpi import MpiGroupComm
from hpcbal.errors import HpcbalError
from hpcbal.training.groups import GroupFailed
from hpcbal.training.torch import distributed

EVERYONE = (2, 0, 1)
PARTITIONS: tuple[Partition, ...] = ([EVERYONE], [(0,), (1, 2)], [(1, 0)], [(2, 1, 0)], [(0, 2), (1,)])
"""Of all trainers, in other orders, and of some."""


def drawn(group: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of some shapes, others on each rank."""
    generator = torch.Generator().manual_seed(100 * len(group) + COMM.rank)
    shapes = ((5, 3), (), (40_000,), (2, 3, 4, 5))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    tensors[-1] = tensors[-1].contiguous(memory_format=torch.channels_last)
    return [tensor.to(dtype) for tensor in tensors]


def like_mpi(bench: Bench) -> None:
    """The sums of MPI, to rounding, equal on all ranks and the same each time; short vectors go by MPI."""
    for partition in PARTITIONS:
        group = bench.join(partition)
        if group is None:
            continue
        collective, comm = bench.groups.collective_of(group), bench.groups.comm_of(group)
        assert isinstance(comm, MpiGroupComm)
        assert (collective.size, group[collective.rank], collective.meets) == (len(group), COMM.rank, True)
        for dtype, precision in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
            tensors = drawn(group, dtype)
            before = [tensor.clone() for tensor in tensors]
            results = []
            for _ in range(2):
                sums, status = collective.sum(tensors, np.array([1.0, COMM.rank]))
                assert status.tolist() == [len(group), sum(group)]
                assert status.dtype == np.float64
                results.append([tensor.numpy().copy() for tensor in sums])
            for index, tensor in enumerate(tensors):
                expected = comm.mpi.allreduce(tensor.double().numpy())
                first, second = results[0][index], results[1][index]
                scale = np.abs(expected).max() * precision
                np.testing.assert_allclose(first, expected, rtol=0, atol=scale)
                np.testing.assert_array_equal(first, second)
                for other in comm.mpi.allgather(first):
                    np.testing.assert_array_equal(first, other)
                assert torch.equal(tensor, before[index]), "what is summed does not change"
        assert collective.sum((), np.ones(3))[1].tolist() == [len(group)] * 3
        arrays, _ = collective.sum([np.ones(2)], np.ones(1))
        assert np.asarray(arrays[0]).tolist() == [len(group)] * 2
        numbers = np.array([2.0])
        collective.exchange(numbers)
        assert numbers.tolist() == [2.0 * len(group)]


def one_group_at_a_time(bench: Bench) -> None:
    """A process group is made by the first sum of tensors, on its ranks only, and freed with the group."""
    hook, threads = sys.excepthook, []
    for partition in PARTITIONS * 3:
        group = bench.join(partition)
        assert not dist.is_initialized()
        if group is None:
            continue
        collective = bench.groups.collective_of(group)
        collective.sum((), np.ones(1))
        assert not dist.is_initialized()
        collective.sum([torch.ones(3)], np.ones(1))
        assert dist.is_initialized() == (len(group) > 1)
        if len(group) > 1:
            assert (dist.get_rank(), dist.get_world_size()) == (collective.rank, len(group))
        threads.append(num_threads())
    bench.groups.close_all()
    assert not dist.is_initialized()
    assert sys.excepthook is hook, "every process group would put another one on top"
    assert num_threads() <= min(threads)


def num_threads() -> int:
    """Of this process, in C too."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def memory_ends(bench: Bench) -> None:
    """The memory of one rank ends before the first sum: all ranks of the group fail, and none waits."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    full = mock.Mock(side_effect=RuntimeError("out of memory: tried to allocate 17 GiB"))
    one = torch.ones(3)
    with (
        mock.patch.object(torch, "empty", full if COMM.rank == 1 else torch.empty),
        pytest.raises(GroupFailed) as failed,
    ):
        collective.sum([one], np.ones(1))
    assert (failed.value.cause, failed.value.local) == ("oom", COMM.rank == 1)
    assert "17 GiB" in failed.value.detail
    sums, _ = collective.sum([one], np.ones(1))
    assert sums[0].tolist() == [3.0] * 3


def made_by_the_user(bench: Bench) -> None:
    """A model that makes the process group itself is told to leave that to us."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    if COMM.rank == 0:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(GroupFailed, match=r"called torch\.distributed\.init_process_group, .* to mpi"):
        collective.sum([torch.ones(3)], np.ones(1))
    if COMM.rank == 0:
        dist.destroy_process_group()


def broken(bench: Bench) -> None:
    """An error of the library ends the job with a sentence, after a while in which a death is reported."""
    bench.join([EVERYONE])
    collective = bench.groups.collective_of(EVERYONE)
    collective.sum([torch.ones(3)], np.ones(1))
    failing: Any = mock.Mock(side_effect=RuntimeError("Connection closed by peer\nand much more"))
    with (
        mock.patch.object(dist, "all_reduce", failing),
        mock.patch.object(distributed, "LOST_S", 0.0),
        pytest.raises(HpcbalError) as failed,
    ):
        collective.sum([torch.ones(3)], np.ones(1))
    assert str(failed.value).startswith(
        "torch.distributed (gloo) could not sum gradients (Connection closed by peer); see"
    )
    assert not isinstance(failed.value, GroupFailed)


PROCESS_GROUP_CASES: tuple[Callable[[Bench], None], ...] = (
    like_mpi,
    one_group_at_a_time,
    memory_ends,
    made_by_the_user,
    broken,
)
