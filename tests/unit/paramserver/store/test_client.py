"""A worker asks each owner once, numbers its pushes by block, and knows what is open."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.paramserver.store.client import Client, ClientError
from hpcbal.paramserver.store.ownership import Ownership


def plain(parts: object) -> list[tuple[int, list[int], list[int]]]:
    return [(owner, blocks.tolist(), numbers.tolist()) for owner, blocks, numbers in parts]  # type: ignore[attr-defined]


def test_a_request_has_one_part_for_each_owner_with_the_numbers_of_its_blocks() -> None:
    client = Client(Ownership([2, 3, 2, 3, 2]))
    first, parts = client.push(np.array([0, 1]))
    assert plain(parts) == [(2, [0], [1]), (3, [1], [1])]
    second, parts = client.push(np.array([1, 2, 3]))
    assert plain(parts) == [(2, [2], [1]), (3, [1, 3], [2, 1])]
    pull, parts = client.pull(np.arange(5))
    assert plain(parts) == [(2, [0, 2, 4], [1, 1, 0]), (3, [1, 3], [2, 1])]
    assert len({first, second, pull}) == 3


def test_long_requests_are_cut() -> None:
    client = Client(Ownership([1] * 5), max_blocks=2)
    assert plain(client.pull(np.arange(5))[1]) == [(1, [0, 1], [0, 0]), (1, [2, 3], [0, 0]), (1, [4], [0])]


def test_a_pull_is_over_when_all_parts_have_come_from_whomever() -> None:
    client = Client(Ownership([1, 1, 2]))
    request, _ = client.pull(np.arange(3))
    assert not client.answered(request, [2])
    assert not client.answered(request, [0])
    assert client.num_pulls == 1
    assert client.answered(request, [1])
    assert client.num_pulls == 0


def test_a_push_is_over_when_all_its_blocks_are_applied() -> None:
    client = Client(Ownership([1, 1, 2]))
    request, _ = client.push(np.arange(3))
    assert not client.applied(request, 2)
    assert client.num_pushes == 1
    assert client.applied(request, 1)
    assert client.num_pushes == 0


def test_later_requests_go_to_the_new_owner_and_numbers_go_on() -> None:
    ownership = Ownership([1, 1])
    client = Client(ownership, pushed=np.array([4, 0]))
    ownership.change([1], 2)
    assert plain(client.push(np.arange(2))[1]) == [(1, [0], [5]), (2, [1], [1])]


def test_an_answer_that_nobody_awaits_is_refused() -> None:
    client = Client(Ownership([1, 1]))
    pull, _ = client.pull(np.array([0]))
    with pytest.raises(ClientError, match=r"values of blocks \[1\] came") as caught:
        client.answered(pull, [0, 1])
    assert "('pull', 1, array([0]))" in str(caught.value)
    client.answered(pull, [0])
    with pytest.raises(ClientError, match="not awaited"):
        client.answered(pull, [0])
    push, _ = client.push(np.array([0]))
    with pytest.raises(ClientError, match="2 blocks are acknowledged, 1 are awaited"):
        client.applied(push, 2)
