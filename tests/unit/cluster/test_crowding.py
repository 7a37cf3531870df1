"""A host with far more busy ranks than cores is described."""

from __future__ import annotations

import pytest

from hpcbal.cluster.launch_line import crowded_hosts, crowding, slots_on_cores, slots_share_cores
from hpcbal.cluster.roles import RankInfo, assign_roles


@pytest.mark.parametrize(
    ("num_ranks", "num_cores", "is_crowded"), [(63, 2, True), (8, 2, False), (63, 0, False)]
)
def test_only_far_more_ranks_than_cores_are_worth_a_warning(
    num_ranks: int, num_cores: int, is_crowded: bool
) -> None:
    assert (crowding(num_ranks, num_cores) is not None) == is_crowded


def test_the_nodes_that_a_machine_was_cut_into_share_its_cores() -> None:
    ranks = [RankInfo(rank, rank // 8, "vm" if rank < 16 else "other", rank, 0, 2) for rank in range(24)]
    roles = assign_roles(ranks, 6, 1)
    (line,) = crowded_hosts(roles, emulated=False)
    assert line.startswith("vm: 15 trainers and preprocessors share 2 cores")
    assert crowded_hosts(roles, emulated=True) == []


@pytest.mark.parametrize(
    ("num_gpus", "num_cores", "share"), [(0, 2, True), (0, 3, False), (0, 0, False), (2, 2, False)]
)
def test_slots_share_cores_where_busy_ranks_outnumber_them(
    num_gpus: int, num_cores: int, share: bool
) -> None:
    """A scheduler, a preprocessor and two trainers; 0 cores: not known."""
    roles = assign_roles([RankInfo(rank, 0, "vm", rank, num_gpus, num_cores) for rank in range(4)], 2, 1)
    assert slots_share_cores(roles, emulated=False) is share
    assert not slots_share_cores(roles, emulated=True)


@pytest.mark.parametrize(
    ("num_cores", "most_useful", "slots"), [(1, None, 1), (2, None, 2), (4, 7, 4), (8, None, 7), (64, 7, 7)]
)
def test_each_core_trains_if_there_is_work_for_it(
    num_cores: int, most_useful: int | None, slots: int
) -> None:
    assert slots_on_cores(num_cores, 1, most_useful) == slots
