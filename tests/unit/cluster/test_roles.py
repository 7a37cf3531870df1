"""Roles: every rank has exactly one, for any nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.cluster.roles import RankInfo, Roles, assign_roles, num_ranks_needed
from hpcbal.errors import ClusterError


def ranks_on(*sizes: int, gpus: int | tuple[int, ...] = 0) -> list[RankInfo]:
    """Ranks in blocks: the first `sizes[0]` on node 0, and so on."""
    per_node = gpus if isinstance(gpus, tuple) else (gpus,) * len(sizes)
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    return [
        RankInfo(rank, node, f"host{node}", 100 + rank, per_node[node]) for rank, node in enumerate(nodes)
    ]


def check_sound(roles: Roles, ranks: list[RankInfo], preprocessors_per_node: int) -> None:
    everyone = [0, *roles.trainer_ranks, *roles.preprocessor_ranks]
    assert sorted(everyone) == list(range(len(ranks)))
    assert len(roles.trainer_ranks) == roles.cluster.num_slots
    node_of_slot = roles.cluster.node_of_slots()
    for slot, rank in enumerate(roles.trainer_ranks):
        assert ranks[rank].node == node_of_slot[slot]
    for node in range(len(roles.cluster.nodes)):
        mine = [rank for rank in roles.preprocessor_ranks if ranks[rank].node == node]
        assert len(mine) >= preprocessors_per_node
        assert roles.gateway_of_node[node] == min(mine)
        assert sorted(roles.local_producer(rank) for rank in mine) == list(
            range(roles.num_local_producers(node))
        )
        trainers = [rank for rank in roles.trainer_ranks if ranks[rank].node == node]
        assert [roles.local_slot(rank) for rank in trainers] == list(range(len(trainers)))
        assert roles.cluster.nodes[node].host == f"host{node}"


@given(st.lists(st.integers(3, 9), min_size=1, max_size=5), st.integers(1, 3), st.data())
def test_every_rank_has_one_role_and_every_node_its_own(sizes: list[int], preprocessors: int, data):
    slots = data.draw(st.one_of(st.none(), st.integers(1, 4)))
    ranks = ranks_on(*sizes)
    fits = [
        size >= num_ranks_needed(slots or 1, preprocessors, first_node=node == 0)
        for node, size in enumerate(sizes)
    ]
    if all(fits):
        check_sound(assign_roles(ranks, slots, preprocessors), ranks, preprocessors)
    else:
        with pytest.raises(ClusterError, match=rf"^node {fits.index(False)} "):
            assign_roles(ranks, slots, preprocessors)


@given(st.lists(st.integers(2, 6), min_size=1, max_size=4))
def test_any_number_of_preprocessors_is_spread_over_the_nodes(spare: list[int]):
    sizes = [1 + count + (node == 0) for node, count in enumerate(spare)]
    roles = assign_roles(ranks_on(*sizes), 1, 1)
    nodes = roles.node_of_rank
    first = [nodes[rank] for rank in roles.preprocessor_ranks[: len(spare)]]
    assert sorted(first) == list(range(len(spare)))


def test_ranks_placed_on_the_nodes_in_turn_work_too():
    ranks = [RankInfo(rank, rank % 2, f"host{rank % 2}", rank, 0) for rank in range(8)]
    roles = assign_roles(ranks, 2, 1)
    check_sound(roles, ranks, 1)
    assert roles.trainer_ranks == (4, 6, 5, 7)


def test_gpus_determine_the_slots_and_nodes_may_differ():
    roles = assign_roles(ranks_on(6, 4, gpus=(4, 2)), None, 1)
    assert [node.num_slots for node in roles.cluster.nodes] == [4, 2]
    assert roles.preprocessor_ranks == (1, 6, 7)
    shared = assign_roles(ranks_on(6, 7, gpus=(2, 3)), None, 1, 2)
    assert [node.num_slots for node in shared.cluster.nodes] == [4, 6]


def test_without_gpus_all_remaining_ranks_train():
    roles = assign_roles(ranks_on(6), None, 2)
    assert roles.trainer_ranks == (3, 4, 5)


def test_too_few_ranks_are_refused_with_the_number_needed():
    with pytest.raises(ClusterError) as caught:
        assign_roles(ranks_on(3), 4, 1)
    assert str(caught.value) == (
        "node 0 (host0) has 3 rank(s), but the config needs 6 there: 1 scheduler + 1 preprocessor(s) + 4 "
        "trainer slot(s); start more ranks (mpirun -n 6 on one node), or lower slots.per_node (4)"
    )


def test_every_rank_has_one_role_and_trainers_are_called_by_their_slot() -> None:
    roles = assign_roles([RankInfo(rank, rank // 4, f"host{rank // 4}", rank, 0) for rank in range(8)], 2, 1)
    assert [roles.role_of(rank) for rank in range(8)] == [
        *("scheduler", "preprocessor", "trainer", "trainer"),
        *("preprocessor", "preprocessor", "trainer", "trainer"),
    ]
    assert sorted(rank for ranks in roles.ranks_by_role.values() for rank in ranks) == list(range(8))
    assert [roles.title_of(rank) for rank in (0, 1, 2, 7)] == [
        "scheduler",
        "preprocessor",
        "slot 0",
        "slot 3",
    ]
