"""No update is lost, applied twice or missed by its own worker, however messages and moves interleave."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parameter_hosts import Access, Network

from hpcbal.events.event_log import MachineError
from hpcbal.paramserver.store.server import Action, Forward, Host

choices = st.lists(st.integers(0, 10**6), max_size=150)


@settings(max_examples=75)
@given(st.integers(1, 4), st.integers(1, 6), choices, st.integers(0, 10**6))
def test_all_updates_are_applied_once_and_seen_by_their_workers(
    num_ranks: int, num_blocks: int, steps: list[int], last: int
) -> None:
    network = Network(num_ranks, num_blocks)
    for choice in steps:
        network.step(choice)
    network.drain(last)


def run(seed: int, host: type[Host[Access]] = Host, num_steps: int = 300) -> Network:
    rng = random.Random(seed)
    network = Network(3, 4, host)
    for _ in range(num_steps):
        network.step(rng.randrange(10**9))
    network.drain(seed)
    return network


def run_all(seeds: Iterable[int], host: type[Host[Access]]) -> None:
    for seed in seeds:
        run(seed, host, 150)


def test_long_runs_meet_every_case() -> None:
    networks = [run(seed) for seed in range(40)]
    for count in ("num_moves", "num_forwards", "num_skips", "num_answers"):
        assert sum(getattr(network, count) for network in networks) > 100


class DropsForwards(Host[Access]):
    """Loses what it should forward."""

    def _try(self, access: Any, actions: list[Action[Access]]) -> bool:
        done = super()._try(access, actions)
        actions[:] = [action for action in actions if not isinstance(action, Forward)]
        return done


class AppliesTwice(Host[Access]):
    """Forgets the numbers of a block that arrives."""

    def arrived(self, block: int, applied: Any = None) -> list[Action[Access]]:
        return super().arrived(block, {worker: number - 1 for worker, number in (applied or {}).items()})


class ChangesWhatIsLent(Host[Access]):
    """Takes lent blocks for free ones."""

    def pull(self, access: Access, worker: int, blocks: Any, numbers: Any, lends: bool = True) -> Any:
        return super().pull(access, worker, blocks, numbers, False)

    def sent(self, blocks: Any) -> list[Action[Access]]:
        return []


class AnswersTooEarly(Host[Access]):
    """Does not wait for a worker's own pushes."""

    def pull(self, access: Access, worker: int, blocks: Any, numbers: Any, lends: bool = True) -> Any:
        return super().pull(access, worker, blocks, [0] * len(blocks), lends)


class ForgetsWhoWaits(Host[Access]):
    """Loses what came before a block."""

    def expect(self, block: int, source: int) -> list[Action[Access]]:
        self._waiting.pop(block, None)
        return super().expect(block, source)

    def arrived(self, block: int, applied: Any = None) -> list[Action[Access]]:
        self._waiting.pop(block, None)
        return super().arrived(block, applied)


class ForwardsBeforeTheNews(Host[Access]):
    """Lets forwarded accesses overtake the block's own news."""

    def _give(self, block: int, destination: int, actions: list[Action[Access]]) -> None:
        start = len(actions)
        super()._give(block, destination, actions)
        actions[start:] = reversed(actions[start:])


@pytest.mark.parametrize(
    "wrong",
    [
        DropsForwards,
        AppliesTwice,
        ChangesWhatIsLent,
        AnswersTooEarly,
        ForgetsWhoWaits,
        ForwardsBeforeTheNews,
    ],
)
def test_a_wrong_host_is_found_out(wrong: type[Host[Access]]) -> None:
    with pytest.raises((AssertionError, MachineError)):
        run_all(range(30), wrong)
