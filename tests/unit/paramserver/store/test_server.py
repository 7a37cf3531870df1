"""A host of parameter blocks answers, applies, keeps waiting, forwards and refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcbal.paramserver.store.server import Answer, Apply, Forward, Give, Host, HostError, Moved, Skip, Took


def host_of(*blocks: int, rank: int = 1) -> Host[str]:
    host: Host[str] = Host(rank)
    host.begin(blocks)
    for block in blocks:
        assert host.arrived(block) == []
    return host


def test_pulls_and_pushes_of_several_blocks_take_one_action() -> None:
    host = host_of(1, 2, 3)
    assert host.push("push", 7, [1, 3], [1, 1]) == [Apply("push", [1, 3])]
    assert host.pull("pull", 7, [1, 2, 3], [1, 0, 1]) == [Answer("pull", [1, 2, 3])]
    assert host.applied(1) == {7: 1}
    assert host.sent([1, 2, 3]) == []
    assert host.is_idle


def test_a_pull_waits_for_its_workers_push_and_gets_the_rest_at_once() -> None:
    host = host_of(1, 2)
    assert host.pull("pull", 7, [1, 2], [0, 1], lends=False) == [Answer("pull", [1])]
    assert host.push("push", 8, [2], [1]) == [Apply("push", [2])]
    assert host.push("own", 7, [2], [1]) == [Apply("own", [2]), Answer("pull", [2])]
    assert host.is_idle


def test_pushes_that_overtook_each_other_are_applied_in_order_and_once() -> None:
    host = host_of(1)
    assert host.push("third", 7, [1], [3]) == []
    assert host.push("second", 7, [1], [2]) == []
    assert host.push("first", 7, [1], [1]) == [
        Apply("first", [1]), Apply("second", [1]), Apply("third", [1])
    ]  # fmt: skip
    assert host.push("again", 7, [1], [2]) == [Skip("again", [1])]


def test_a_lent_block_is_changed_when_the_last_send_is_over() -> None:
    host = host_of(1, 2)
    host.pull("one", 7, [1], [0])
    host.pull("two", 8, [1], [0])
    assert host.push("push", 9, [1, 2], [1, 1]) == [Apply("push", [2])]
    assert host.sent([1]) == []
    assert host.sent([1]) == [Apply("push", [1])]


def test_an_answer_that_an_update_makes_possible_lends_before_the_next_update() -> None:
    host = host_of(1)
    host.pull("reads", 8, [1], [0])
    host.push("one", 7, [1], [1])
    host.pull("waits", 7, [1], [1])
    host.push("two", 9, [1], [1])
    assert host.sent([1]) == [Apply("one", [1]), Answer("waits", [1])]
    assert host.sent([1]) == [Apply("two", [1])]


def test_a_move_hands_the_block_over_first_and_forwards_what_waits_and_what_comes() -> None:
    host = host_of(1, 2)
    host.pull("reads", 8, [1], [0])
    host.push("waits", 7, [1, 2], [1, 1])
    assert host.move([1], 3) == [Give(1, 3, {}), Forward("waits", [1], 3)]
    assert host.pull("late", 7, [1, 2], [1, 1]) == [Forward("late", [1], 3), Answer("late", [2])]
    assert host.sent([1]) == []
    assert host.taken(1, 3) == [Moved(1, 3)]
    assert host.blocks == [2]


def test_a_new_owner_keeps_accesses_until_the_values_are_there() -> None:
    host = host_of(rank=3)
    assert host.expect(1, 2) == []
    assert host.pull("pull", 7, [1], [5]) == []
    assert host.push("push", 7, [1], [5]) == []
    assert host.arrived(1, {7: 4}) == [Took(1, 2), Apply("push", [1]), Answer("pull", [1])]


def test_requests_follow_a_block_along_its_path_and_back() -> None:
    a, b, c = host_of(1, rank=1), host_of(rank=2), host_of(rank=3)
    for source, to in ((a, b), (b, c)):
        (give,) = source.move([1], to.rank)
        assert isinstance(give, Give)
        to.expect(1, source.rank)
        assert to.arrived(1, give.applied) == [Took(1, source.rank)]
    assert a.push("old", 7, [1], [1]) == [Forward("old", [1], 2)]
    assert b.push("old", 7, [1], [1]) == [Forward("old", [1], 3)]
    assert c.push("old", 7, [1], [1]) == [Apply("old", [1])]
    assert c.move([1], 1) == [Give(1, 1, {7: 1})]
    a.expect(1, 3)
    assert b.pull("pull", 7, [1], [1]) == [Forward("pull", [1], 3)]
    assert c.pull("pull", 7, [1], [1]) == [Forward("pull", [1], 1)]
    assert a.pull("pull", 7, [1], [1]) == []
    assert a.arrived(1, {7: 1}) == [Took(1, 3), Answer("pull", [1])]


def test_a_block_that_is_ordered_on_before_it_has_come_moves_on_when_it_comes() -> None:
    host = host_of(rank=3)
    host.expect(1, 2)
    host.push("push", 7, [1], [1])
    host.push("gap", 7, [1], [3])
    assert host.move([1], 4) == []
    assert host.arrived(1) == [Took(1, 2), Apply("push", [1]), Give(1, 4, {7: 1}), Forward("gap", [1], 4)]


def test_accesses_wait_until_the_job_begins() -> None:
    host: Host[str] = Host(1)
    assert host.pull("pull", 7, [1], [0]) == []
    host.begin([1])
    assert host.push("push", 7, [1], [1]) == []
    assert host.arrived(1) == [Answer("pull", [1])]
    assert host.sent([1]) == [Apply("push", [1])]


@pytest.mark.parametrize(
    ("do", "problem"),
    [
        (lambda host: host.pull("pull", 7, [9], [0]), "worker 7 takes rank 1 for the owner of block 9"),
        (lambda host: host.push("push", 7, [1, 9], [1, 1]), "takes rank 1 for the owner of block 9"),
        (lambda host: host.sent([1]), "block 1 is returned but not lent"),
        (lambda host: host.begin([4]), "begins twice"),
        (lambda host: host.expect(1, 2), "rank 2 gives block 1, which is not its own"),
        (lambda host: host.arrived(9), "block 9 arrives but is not awaited"),
        (lambda host: host.move([9], 2), "block 9 is to move to 2, but rank None has got it"),
        (lambda host: [host.move([1], 2), host.move([1], 3)], "is to move to 3, but rank 2 has got it"),
        (lambda host: host.move([1], 1), "from rank 1 to itself"),
        (lambda host: host.taken(1, 2), "rank 2 has taken block 1, which it was not given"),
        (
            lambda host: [host.expect(9, 2), host.move([9], 3), host.move([9], 4)],
            "block 9 is to move to 4, but rank 3 has got it",
        ),
    ],
)
def test_what_cannot_happen_is_refused(do: Callable[[Host[str]], object], problem: str) -> None:
    host = host_of(1, 2)
    host.push("push", 7, [1], [1])
    with pytest.raises(HostError, match=problem) as caught:
        do(host)
    assert "('push', [1], (7, [1]))" in str(caught.value)


def test_an_access_that_waits_for_a_block_of_others_is_refused_when_the_job_begins() -> None:
    host: Host[str] = Host(1)
    host.pull("pull", 7, [9], [0])
    with pytest.raises(HostError, match="owner of block 9"):
        host.begin([1])


def test_what_waits_for_several_blocks_takes_one_action_in_the_end() -> None:
    """A worker's push waits for blocks that are lent to another one, and its next pull for the push."""
    host = host_of(0, 1, 2)
    blocks = [0, 1, 2]
    assert host.pull("other", 7, blocks, [0, 0, 0]) == [Answer("other", blocks)]
    assert host.push("push", 8, blocks, [1, 1, 1]) == []
    assert host.pull("pull", 8, blocks, [1, 1, 1]) == []
    assert host.sent(blocks) == [Apply("push", blocks), Answer("pull", blocks)]
    assert host.pull("early", 8, blocks, [2, 2, 2]) == []
    assert host.sent(blocks) == []
    assert host.push("late", 8, blocks, [2, 2, 2]) == [Apply("late", blocks), Answer("early", blocks)]
    host.check()
