"""Ranks find out together which nodes and GPUs they have."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mpi4py import MPI

from hpcbal.cluster import discovery
from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.roles import Roles

# Per node, the GPUs that each of its ranks sees.
Seen = list[list[tuple[str, ...]]]


class Comm:
    """The ranks of one job, or of one node, as its rank 0 sees them."""

    def __init__(self, seen: Seen) -> None:
        self.rank = 0
        firsts = [sum(map(len, seen[:node])) for node in range(len(seen))]
        self._others = [
            (firsts[node], f"host{node}", 100 + firsts[node] + number, gpus, Cores(frozenset({number % 2})))
            for node, ranks in enumerate(seen)
            for number, gpus in enumerate(ranks)
        ][1:]

    def bcast(self, value: Any, root: int = 0) -> Any:
        assert root == 0
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value, *self._others]


def discovered(monkeypatch: pytest.MonkeyPatch, seen: Seen) -> Roles:
    monkeypatch.setattr(discovery, "visible_gpus", lambda device: seen[0][0])
    monkeypatch.setattr(Cores, "of_this_process", lambda: Cores(frozenset({0})))
    comm = cast("MPI.Comm", Comm(seen))
    return discovery.discover(comm, comm, slots_per_node=None, preprocessors_per_node=1, device="auto")


def test_ranks_that_see_one_gpu_each_are_counted_together(monkeypatch: pytest.MonkeyPatch):
    ranks = [("0",), ("1",), ("2",), ("3",), ("0",), ("1",)]
    roles = discovered(monkeypatch, [ranks, ranks])
    assert [rank.num_gpus for rank in roles.ranks] == [4] * 12
    assert [rank.devices for rank in roles.ranks[:6]] == ranks
    assert [node.num_slots for node in roles.cluster.nodes] == [4, 4]


def test_a_gpu_that_all_ranks_see_counts_once(monkeypatch: pytest.MonkeyPatch):
    roles = discovered(monkeypatch, [[("0", "1")] * 4])
    assert {rank.num_gpus for rank in roles.ranks} == {2}


def test_ranks_that_see_none_do_not_hide_the_gpus_of_the_others(monkeypatch: pytest.MonkeyPatch):
    roles = discovered(monkeypatch, [[(), (), ("GPU-a",), ("GPU-b",)], [(), (), ("GPU-c",)]])
    assert [rank.num_gpus for rank in roles.ranks] == [2, 2, 2, 2, 1, 1, 1]


def test_a_core_that_several_ranks_share_counts_once(monkeypatch: pytest.MonkeyPatch):
    roles = discovered(monkeypatch, [[()] * 6])
    assert {rank.num_cores for rank in roles.ranks} == {2}
