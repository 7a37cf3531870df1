"""Plans of changes: any order that respects the dependencies leads to the wanted ownership."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.changes import (
    Add,
    BlockAssignment,
    Delete,
    Move,
    Plan,
    Switch,
    plan_changes,
    renamed,
)
from hpcbal.policies.configuring.cost_model import Configuration, Machine

NUM_DATA, NUM_PARAMETERS = 17, 9


@st.composite
def configurations(draw: st.DrawFn, num_machines: int = 6) -> Configuration:
    roles = draw(
        st.lists(
            st.sampled_from(["worker", "server", "standby"]), min_size=num_machines, max_size=num_machines
        )
    )
    assume("worker" in roles and "server" in roles)

    def spread(role: str, total: int) -> list[int]:
        members = [i for i in range(num_machines) if roles[i] == role]
        cuts = sorted(
            draw(
                st.lists(
                    st.integers(1, total - 1),
                    min_size=len(members) - 1,
                    max_size=len(members) - 1,
                    unique=True,
                )
            )
        )
        counts = [0] * num_machines
        for i, low, high in zip(members, [0, *cuts], [*cuts, total], strict=True):
            counts[i] = high - low
        return counts

    return Configuration.of_blocks(spread("worker", NUM_DATA), spread("server", NUM_PARAMETERS))


def ownership_of(configuration: Configuration, shuffle: list[int]) -> BlockAssignment:
    """An ownership with these counts; blocks are dealt in a drawn order."""
    data = [i for i, count in enumerate(configuration.data_blocks) for _ in range(count)]
    parameters = [i for i, count in enumerate(configuration.parameter_blocks) for _ in range(count)]
    mixed = [data[k] for k in shuffle]
    return BlockAssignment(configuration.roles, tuple(mixed), tuple(parameters))


def execute(plan: Plan, current: BlockAssignment, data: st.DataObject) -> BlockAssignment:
    """Start operations in a drawn order, side by side; blocks arrive when a move is complete."""
    roles = list(current.roles)
    owners = {"data": list(current.data_owner), "parameters": list(current.parameter_owner)}
    needs = {"data": "worker", "parameters": "server"}
    done: frozenset[int] = frozenset()
    running: frozenset[int] = frozenset()
    while len(done) < len(plan.operations):
        choices = [("start", i) for i in plan.ready(done, done | running)] + [
            ("end", i) for i in sorted(running)
        ]
        assert choices, "no operation can go on"
        what, i = data.draw(st.sampled_from(choices))
        if what == "start":
            running |= {i}
            continue
        operation = plan.operations[i]
        match operation:
            case Add(machine, role):
                assert roles[machine] == "standby"
                roles[machine] = role
            case Switch(machine, role):
                assert all(machine not in own for own in owners.values())
                roles[machine] = role
            case Delete(machine):
                assert all(machine not in own for own in owners.values())
                roles[machine] = "standby"
            case Move(kind, blocks, source, destination):
                for block in blocks:
                    assert owners[kind][block] == source
                    owners[kind][block] = destination
        for kind, own in owners.items():
            assert all(roles[owner] == needs[kind] for owner in own), "an owner is absent"
        running, done = running - {i}, done | {i}
    return BlockAssignment(tuple(roles), tuple(owners["data"]), tuple(owners["parameters"]))


def moved(now: tuple[int, ...], then: tuple[int, ...]) -> int:
    return sum(max(0, new - old) for old, new in zip(now, then, strict=True))


@given(configurations(), configurations(), st.permutations(range(NUM_DATA)), st.data())
def test_any_order_leads_to_the_wanted_ownership(
    now: Configuration, wanted: Configuration, shuffle: list[int], data: st.DataObject
) -> None:
    current = ownership_of(now, shuffle)
    pairs = list(zip(now.roles, wanted.roles, strict=True))
    stays = any(new != "standby" and old in (new, "standby") for old, new in pairs)
    try:
        plan = plan_changes(current, wanted)
    except PolicyError:
        assert not stays
        return
    assert execute(plan, current, data).configuration == wanted
    # No plan moves fewer blocks, unless machines that exchange their roles need a way round.
    exchange = ("worker", "server") in pairs and ("server", "worker") in pairs
    fewest = moved(now.data_blocks, wanted.data_blocks), moved(now.parameter_blocks, wanted.parameter_blocks)
    for kind, number in zip(("data", "parameters"), fewest, strict=True):
        moves = [move for move in plan.moves if move.what == kind]
        assert exchange or sum(len(move.blocks) for move in moves) == number
        assert sum(len(move.blocks) for move in moves) <= 2 * number
        ends = {move.source for move in moves} | {move.destination for move in moves}
        assert exchange or len(moves) <= max(0, len(ends) - 1)
    assert all(first < i for i, needed in enumerate(plan.after) for first in needed)


@given(configurations(), configurations(), st.lists(st.booleans(), min_size=6, max_size=6))
def test_renaming_equal_machines_keeps_the_parts_of_each_kind_and_never_moves_more(
    now: Configuration, wanted: Configuration, is_fast: list[bool]
) -> None:
    kinds = [Machine(1.0, 1.0), Machine(0.5, 1.0)]
    machines = [kinds[fast] for fast in is_fast]
    new = renamed(now, wanted, machines)
    for kind in kinds:
        members = [i for i in range(6) if machines[i] == kind]

        def parts(configuration: Configuration, members: list[int] = members) -> list[tuple[str, int, int]]:
            return sorted(
                (configuration.roles[i], configuration.data_blocks[i], configuration.parameter_blocks[i])
                for i in members
            )

        assert parts(new) == parts(wanted)
    changes = [sum(a != b for a, b in zip(now.roles, other.roles, strict=True)) for other in (new, wanted)]
    assert changes[0] <= changes[1]
    assert renamed(new, wanted, machines) == new


def test_a_switch_waits_for_its_blocks_and_a_move_to_it_waits_for_the_switch() -> None:
    now = Configuration.of_blocks([10, 7, 0, 0], [0, 0, 5, 4])
    wanted = Configuration.of_blocks([6, 6, 5, 0], [0, 0, 0, 9])
    plan = plan_changes(ownership_of(now, list(range(NUM_DATA))), wanted)
    assert plan.operations[0] == Move("parameters", (0, 1, 2, 3, 4), 2, 3)
    assert plan.operations[1] == Switch(2, "worker")
    assert [(move.source, len(move.blocks)) for move in plan.moves[1:]] == [(0, 4), (1, 1)]
    assert plan.after == ((), (0,), (1,), (1,))


def test_deleted_machines_are_drained_and_added_ones_start_at_once() -> None:
    now = Configuration.of_blocks([10, 7, 0, 0], [0, 0, 9, 0])
    wanted = Configuration.of_blocks([0, 9, 0, 8], [0, 0, 9, 0])
    plan = plan_changes(ownership_of(now, list(range(NUM_DATA))), wanted)
    assert plan.ready(frozenset(), frozenset()) == (0, 1)
    kinds = [type(operation) for operation in plan.operations]
    assert kinds == [Add, Move, Move, Delete]
    assert plan.after[-1] == (1, 2)


def test_a_change_that_would_leave_no_worker_on_the_way_is_refused() -> None:
    now = Configuration.of_blocks([NUM_DATA, 0], [0, NUM_PARAMETERS])
    swapped = Configuration.of_blocks([0, NUM_DATA], [NUM_PARAMETERS, 0])
    current = ownership_of(now, list(range(NUM_DATA)))
    with pytest.raises(PolicyError, match="two steps"):
        plan_changes(current, swapped)
    equals = [Machine(1.0, 1.0)] * 2
    assert plan_changes(current, renamed(now, swapped, equals)).operations == ()


def test_changes_of_another_number_of_blocks_are_refused() -> None:
    now = Configuration.of_blocks([*split_evenly(17, 3), 0], [0, 0, 0, 9])
    with pytest.raises(PolicyError, match="16 blocks of data"):
        plan_changes(ownership_of(now, list(range(17))), Configuration.of_blocks([6, 5, 5, 0], [0, 0, 0, 9]))
