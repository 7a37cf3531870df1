"""A host with far more busy ranks than cores is described."""

from __future__ import annotations

import pytest

from hpcbal.cluster.crowding import crowded_hosts, crowding
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
