"""A worker asks each owner once, numbers its pushes by block, and knows what is open."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from hpcbal.paramserver.store.client import Client, ClientError, Part
from hpcbal.paramserver.store.layout import Ownership


def plain(parts: Iterable[Part]) -> list[tuple[int, list[int], list[int]]]:
    return [(owner, blocks.tolist(), numbers.tolist()) for owner, blocks, numbers in parts]


def pushed(client: Client, blocks: list[int]) -> list[tuple[int, list[int], list[int]]]:
    client.push(np.array(blocks))
    return plain(client.parts(np.array(blocks)))


def test_a_request_has_one_part_for_each_owner_with_the_numbers_of_its_blocks() -> None:
    client = Client(0, Ownership([2, 3, 2, 3, 2]))
    assert pushed(client, [0, 1]) == [(2, [0], [1]), (3, [1], [1])]
    assert pushed(client, [1, 2, 3]) == [(2, [2], [1]), (3, [1, 3], [2, 1])]
    assert plain(client.parts(np.arange(5))) == [(2, [0, 2, 4], [1, 1, 0]), (3, [1, 3], [2, 1])]


def test_each_request_has_its_own_number() -> None:
    client = Client(0, Ownership([1, 1]))
    assert len({client.pull(2), client.push(np.array([0])), client.pull(1)}) == 3


def test_long_requests_are_cut() -> None:
    client = Client(0, Ownership([1] * 5), max_blocks=2)
    assert plain(client.parts(np.arange(5))) == [(1, [0, 1], [0, 0]), (1, [2, 3], [0, 0]), (1, [4], [0])]


def test_a_pull_is_over_when_all_parts_have_come_from_whomever() -> None:
    client = Client(0, Ownership([1, 1, 2]))
    request = client.pull(3)
    assert not client.answered(request, 2)
    assert client.num_pulls == 1
    assert client.answered(request, 1)
    assert client.num_pulls == 0


def test_a_push_is_over_when_all_its_blocks_are_applied() -> None:
    client = Client(0, Ownership([1, 1, 2]))
    request = client.push(np.arange(3))
    assert not client.applied(request, 2)
    assert client.num_pushes == 1
    assert client.applied(request, 1)
    assert client.num_pushes == 0


def test_later_requests_go_to_the_new_owner_and_numbers_go_on() -> None:
    ownership = Ownership([1, 1])
    client = Client(0, ownership)
    for _ in range(4):
        client.push(np.array([0]))
    ownership.change([1], 2)
    assert pushed(client, [0, 1]) == [(1, [0], [5]), (2, [1], [1])]


def test_an_answer_that_nobody_awaits_is_refused() -> None:
    client = Client(0, Ownership([1, 1]))
    pull = client.pull(1)
    with pytest.raises(ClientError, match="2 blocks have come, 1 are awaited") as caught:
        client.answered(pull, 2)
    assert "('pull', 1, 1)" in str(caught.value)
    client.answered(pull, 1)
    with pytest.raises(ClientError, match="1 blocks have come, 0 are awaited"):
        client.answered(pull, 1)
    push = client.push(np.array([0]))
    with pytest.raises(ClientError, match="2 blocks are acknowledged, 1 are awaited"):
        client.applied(push, 2)
