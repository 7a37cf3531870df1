"""Shares follow the master's decisions, at the same step on all ranks, and never wait for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hpcbal.config import DnnConfig
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.control.splitting.machine import WARM_UP_STEPS
from hpcbal.dataplane.reader import Batch
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, Decision, Observation
from hpcbal.policies.batching.even import Even
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, Memoryless
from hpcbal.policies.batching.task import BatchState
from hpcbal.policies.selection import StepShares
from hpcbal.runtime.balance.balancer import Balancer, EvenSplit, FixedSplit, make_balancer
from hpcbal.runtime.balance.decided_split import DecidedSplit, SplitMemory
from hpcbal.runtime.balance.speed_learning import KeptModel
from hpcbal.runtime.balance.step import (
    NUM_FACTS,
    UNKNOWN,
    Step,
    WorkerWatch,
    observations_of,
    report_of_rank,
)
from hpcbal.telemetry.resources.resource_use import ResourceUse

SETTLE_S = 20.0


@dataclass
class OneRank:
    """The master's view of a group of two whose other rank reports `other` when they are asked."""

    size: int = 2
    rank: int = 0
    meets: bool = True
    other: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(NUM_FACTS))

    def sum(self, tensors: Sequence[Any], status: np.ndarray[Any, Any]) -> tuple[Sequence[Any], Any]:
        return tensors, status.copy()

    def tell(self, numbers: np.ndarray[Any, Any]) -> None:
        """The master's stay as they are."""

    def consult(self, numbers: np.ndarray[Any, Any], answer: Callable[..., Any], length: int) -> Any:
        return answer(np.stack([numbers, self.other]))

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class Scripted(BatchingPolicy[BatchState]):
    """Answers with the next of `answers`, after `gate` has opened; notes what it is shown."""

    answers: list[tuple[int, ...] | Exception]
    gate: threading.Event = field(default_factory=threading.Event)
    seen: list[tuple[int, ...]] = field(default_factory=list)
    removes: int | None = None
    cadence: Cadence = Cadence.BACKGROUND  # type: ignore[misc]

    def start(self, task: BatchTask) -> BatchState:
        return Even().start(task)

    def decide(self, state: BatchState, observations: Sequence[Observation]) -> Decision[BatchState]:
        assert self.gate.wait(SETTLE_S)
        self.seen.append(tuple(seen.num_samples for seen in observations))
        answer = self.answers.pop(0) if self.answers else state.batch_sizes
        if isinstance(answer, Exception):
            raise answer
        return Decision(BatchState(state.task, answer), self.removes)


@dataclass(frozen=True)
class Noting(Even):
    """Even shares; records what it receives."""

    seen: list[Sequence[Observation]] = field(default_factory=list)
    cadence: Cadence = Cadence.BACKGROUND  # type: ignore[misc]

    def decide(self, state: BatchState, observations: Sequence[Observation]) -> Decision[BatchState]:
        self.seen.append(observations)
        return super().decide(state, observations)


@dataclass
class DeviceOf:
    """An accelerator that is always as full; notes what each round begins with."""

    share: float | None = None
    needed: float = 0.0
    begun_with: list[float] = field(default_factory=list)

    def begin(self, needed: float) -> None:
        self.begun_with.append(needed)

    def read(self, num_samples: int) -> float | None:
        return self.share


def make_split(policy: BatchingPolicy[Any], *, meets: bool = True, **settings: Any) -> DecidedSplit:
    split = DecidedSplit("dnn", policy, 10, OneRank(meets=meets), **settings)
    warm_up(split)
    return split


def shares_of(split: Balancer, num_samples: int = 10) -> tuple[int, ...]:
    """Return the ranks' samples of a step that is planned now."""
    return split.deal(0, num_samples).counts


def warm_up(split: DecidedSplit) -> None:
    """The first steps, in which nothing is decided."""
    sizes = shares_of(split)
    for _ in range(WARM_UP_STEPS):
        step(split, sizes)
        assert shares_of(split) == sizes


def step_with(shares: tuple[int, ...], rank: int = 0, preprocessing_s: float = 0.0) -> Step:
    ids = np.arange(shares[rank])
    total = sum(shares)
    return Step(
        0, total, True, total, StepShares.neighbours(0, shares), Batch(ids, ids, ids), preprocessing_s
    )


def report_in(
    split: DecidedSplit, mine: Step, began_s: float, other: np.ndarray[Any, Any], *, settled: bool = False
) -> None:
    """Rank 0 has computed since `began_s`, the other rank reports `other`, and both take the sums.

    If `settled`, the step lasts longer than the decision that is made beside it.
    """
    cast("OneRank", split._collective).other = other
    meets = not split.plans_ahead and split._collective.meets
    split.begin_step()
    if settled and split._pending is not None:
        split._pending.exception(SETTLE_S)
    numbers = split.exchange(mine, time.monotonic() - began_s)
    assert bool(numbers.size) != meets
    if numbers.size:
        numbers[NUM_FACTS : 2 * NUM_FACTS] = other
    split.decide(mine, numbers)


def step(split: DecidedSplit, shares: tuple[int, ...], *, settled: bool = True) -> None:
    """One step: both ranks report, and the shares of the group follow."""
    other = report_of_rank(step_with(shares, 1), 0.5, WorkerWatch())
    report_in(split, step_with(shares), 0.0, other, settled=settled)


def step_of(split: DecidedSplit, seconds: tuple[float, float]) -> None:
    """One step of five samples on each of two ranks, that takes them so long."""
    other = report_of_rank(step_with((5, 5), 1), seconds[1], WorkerWatch())
    report_in(split, step_with((5, 5)), time.monotonic() - seconds[0], other)


def make_dnn(balance: str | None = None) -> DnnConfig:
    return DnnConfig.model_validate(
        {
            "name": "a",
            "model": "m:f",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "batch_size": 10,
            "stop": {"max_epochs": 1},
            "balance": balance,
        }
    )


def balancer_of(
    settings: BalanceConfig, dnn: DnnConfig, memories: dict[str, SplitMemory] | None = None
) -> Balancer:
    memories = {} if memories is None else memories
    return make_balancer(
        settings,
        dnn,
        100,
        OneRank(),
        memories,
        "a on (0, 1)",
        kept=KeptModel(Path("not there"), (0, 1)),
    )


def opened(
    *answers: tuple[int, ...] | Exception,
    removes: int | None = None,
    cadence: Cadence = Cadence.BACKGROUND,
) -> Scripted:
    policy = Scripted(list(answers), removes=removes, cadence=cadence)
    policy.gate.set()
    return policy


def test_a_decision_rides_with_the_next_step() -> None:
    split = make_split(opened((7, 3)))
    step(split, (5, 5))
    assert shares_of(split) == (5, 5)
    step(split, (5, 5))
    assert shares_of(split) == (7, 3)
    split.close()


def test_a_step_does_not_wait_for_a_decision() -> None:
    policy = Scripted([(7, 3)])
    split = make_split(policy)
    for _ in range(5):
        step(split, (5, 5), settled=False)
    assert shares_of(split) == (5, 5)
    policy.gate.set()
    split._pending.exception(SETTLE_S)  # type: ignore[union-attr]
    step(split, (5, 5))
    assert shares_of(split) == (7, 3)
    assert len(policy.seen) == 1
    split.close()


def test_the_policy_sees_no_step_of_older_shares_than_its_last_answer() -> None:
    policy = opened((7, 3), (8, 2))
    split = make_split(policy)
    for shares in [(5, 5), (5, 5), (5, 5), (7, 3), (7, 3)]:
        step(split, shares)
    assert policy.seen == [(5, 5), (7, 3)]
    split.close()


@pytest.mark.parametrize("meets", [False, True])
def test_decisions_that_are_waited_for_hold_for_the_next_step(meets: bool) -> None:
    split = make_split(opened((7, 3), (6, 4), cadence=Cadence.EVERY_STEP), meets=meets)
    step(split, (5, 5))
    assert shares_of(split) == (7, 3)
    step(split, (7, 3))
    assert shares_of(split) == (6, 4)
    assert split.take_facts()["balance"]["changes"] == 2
    split.close()


@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("cadence", [Cadence.BACKGROUND, Cadence.UNTIL_SETTLED, Cadence.EVERY_STEP])
def test_a_policy_that_fails_is_asked_no_more(
    cadence: Cadence, meets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    policy = opened((7, 3), ValueError("singular"), cadence=cadence)
    split = make_split(policy, meets=meets)
    for _ in range(8):
        step(split, shares_of(split))
    assert shares_of(split) == (7, 3)
    assert len(policy.seen) == 2
    assert caplog.text.count("balancing stops") == 1
    split.close()


def test_an_offer_to_remove_a_rank_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    split = make_split(opened(removes=1))
    for _ in range(4):
        step(split, (5, 5))
    assert caplog.text.count("faster without rank 1") == 1
    assert split.take_facts()["balance"]["remove"] == 1
    split.close()


def test_an_offer_does_not_outlive_the_policy_that_made_it() -> None:
    split = make_split(opened((5, 5), (5, 5), ValueError("singular"), removes=1))
    for expected in (None, 1, 1, None, None):
        step(split, (5, 5))
        assert split.remove == expected
    split.close()


def test_what_a_group_needed_of_memory_is_known_in_its_next_round() -> None:
    device = DeviceOf(needed=0.6)
    watch = WorkerWatch(device=device)
    first = DecidedSplit("dnn", opened(), 10, OneRank(), watch=watch)
    first.start()
    step(first, (5, 5))
    first.close()
    again = DecidedSplit("dnn", opened(), 10, OneRank(), watch=watch, memory=first.memory)
    again.start()
    again.close()
    other = DecidedSplit("dnn", opened(), 10, OneRank(), watch=watch)
    other.start()
    other.close()
    assert device.begun_with == [0.0, 0.6, 0.0], "another group's policy knows no batch yet"


def test_a_round_that_never_began_keeps_what_its_group_needed() -> None:
    memory = SplitMemory(opened().start(BatchTask.uniform(10, 2)), needed_memory=0.3)
    watch = WorkerWatch(device=DeviceOf(needed=0.9))  # another group's
    DecidedSplit("dnn", opened(), 10, OneRank(), watch=watch, memory=memory).close()
    assert memory.needed_memory == 0.3


def test_steps_of_other_sizes_keep_the_proportions() -> None:
    split = make_split(Noting(), memory=SplitMemory(BatchState(BatchTask.uniform(10, 2), (8, 2))))
    split.start()
    assert shares_of(split) == (8, 2)
    assert shares_of(split, 5) == (4, 1)
    assert shares_of(split, 20) == (16, 4)
    split.close()


def test_a_group_continues_with_what_it_knew() -> None:
    dnn = make_dnn()
    memories: dict[str, SplitMemory] = {}
    settings = BalanceConfig(policy="lb-bsp-cpu", predictor="memoryless")
    first = balancer_of(settings, dnn, memories)
    assert isinstance(first, DecidedSplit)
    warm_up(first)
    step_of(first, (0.1, 0.4))
    first.close()
    again = balancer_of(settings, dnn, memories)
    assert shares_of(again) == shares_of(first) == (8, 2)
    again.close()


def test_nothing_is_balanced_where_there_is_nothing_to_balance() -> None:
    split = EvenSplit(3)
    assert shares_of(split) == (4, 3, 3)
    split.start()
    assert split.take_facts() == {}


@pytest.mark.parametrize(
    ("of_the_run", "of_the_dnn", "is_even"),
    [("even", None, True), ("fitted", None, False), ("fitted", "even", True), ("even", "fitted", False)],
)
def test_a_dnn_may_want_another_policy(of_the_run: str, of_the_dnn: str | None, is_even: bool) -> None:
    settings = BalanceConfig.model_validate({"policy": of_the_run})
    split = balancer_of(settings, make_dnn(of_the_dnn))
    assert isinstance(split, EvenSplit) == is_even
    split.close()


def test_a_dnn_may_have_fixed_shares_of_its_own() -> None:
    settings = BalanceConfig.model_validate({"policy": "fixed", "shares": [4, 1]})
    dnn = make_dnn().model_copy(update={"shares": (1.0, 4.0)})
    assert shares_of(balancer_of(settings, dnn)) == (2, 8)


def test_fixed_shares_hold_for_steps_of_every_size() -> None:
    settings = BalanceConfig.model_validate({"policy": "fixed", "shares": [4, 1]})
    split = balancer_of(settings, make_dnn())
    assert isinstance(split, FixedSplit)
    split.start()
    assert shares_of(split) == (8, 2)
    assert shares_of(split, 5) == (4, 1)
    assert shares_of(split, 20) == (16, 4)
    assert split.exchange(step_with((8, 2)), 0.0).size == 0
    assert split.take_facts() == {"balance": {"shares": [8, 2]}}
    split.close()


def test_the_predictor_is_that_of_the_config() -> None:
    split = balancer_of(BalanceConfig(policy="lb-bsp-cpu", predictor="memoryless"), make_dnn())
    assert isinstance(split, DecidedSplit)
    assert split._policy == LbBspCpu(Memoryless())


def test_reports_become_observations() -> None:
    seconds = {0: 0.5, 1: 0.1}
    reports = np.stack([report_of_rank(step_with((4, 0), j), s, WorkerWatch()) for j, s in seconds.items()])
    assert observations_of(reports) == (Observation(4, 0.5), Observation(0, 0.0))
    reports[0, 1:] = 6.5, 0.5, 0.5, 0.25, 0.96
    assert observations_of(reports)[0] == Observation(4, 0.5, 0.5, 0.25, 0.96, work=6.5)


def test_a_rank_reports_what_it_sees_of_its_resources() -> None:
    watch = WorkerWatch(lambda: ResourceUse(0.5, None), DeviceOf(0.75))
    split = make_split(Noting(), watch=watch)
    reports = split.exchange(step_with((5, 5)), 0.0)[: 2 * NUM_FACTS].reshape(2, NUM_FACTS)
    assert reports[:, 3:].tolist() == [[0.5, UNKNOWN, 0.75], [0.0, 0.0, 0.0]]
    split.close()


@pytest.mark.parametrize("cadence", [Cadence.BACKGROUND, Cadence.EVERY_STEP])
def test_policies_see_what_a_step_keeps_a_rank_busy(cadence: Cadence) -> None:
    policy = Noting(cadence=cadence)
    split = make_split(policy)
    other = report_of_rank(step_with((5, 5), 1), 12.0, WorkerWatch())
    report_in(split, step_with((5, 5), preprocessing_s=1000.0), time.monotonic(), other)
    split.close()
    mine, others = policy.seen[-1]
    assert mine.processing_s >= 1000.0
    assert others.processing_s == 12.0


def test_a_gpu_whose_memory_is_full_gets_no_more() -> None:
    watch = WorkerWatch(device=DeviceOf(0.96))
    split = make_split(LbBspCpu(Memoryless()), watch=watch)
    step_of(split, (0.1, 0.4))
    assert shares_of(split) == (5, 5)
    split.close()


@pytest.mark.parametrize(("max_samples", "expected"), [(None, (8, 2)), (7, (7, 3)), (2, (5, 5))])
def test_no_rank_gets_more_than_its_memory_holds(max_samples: int | None, expected: tuple[int, ...]) -> None:
    split = make_split(LbBspCpu(Memoryless()), max_samples=max_samples)
    step_of(split, (0.1, 0.4))
    assert shares_of(split) == expected
    split.close()
