"""One pass of the shared stream through one trainer group: training steps, then validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from hpcbal.events.history import VALIDATION, BalanceFacts, EpochFacts, PartitionFacts, Position, RankFacts
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.evidence import GroupEvidence
from hpcbal.runtime.group.feeding import Batches, Feeder
from hpcbal.telemetry.streams.slices import StepTrace
from hpcbal.training.backend import GradientCollective, Replica, Sums
from hpcbal.training.step import StepOutcome, compute_step, confirm_updates, evaluate_step, finish_step


@dataclass
class RankTimes:
    """One rank's sums over the training steps of a pass.

    Attributes:
        wait_s: seconds of waiting for batches.
        compute_s: seconds from having a batch until arriving at the collective.
        collective_s: seconds in the collective, mostly waiting for slower ranks.
        samples: number of valid samples that this rank computed on.
        worked_s: seconds that balancing equalises, see `Step.worked_s`: `compute_s` combined with this rank's
            own preprocessing.
        work: in samples of mean size.
        slowest: work of the slowest rank in each step, see `DealtStep`.
        num_steps: number of training steps.
        least_s: shortest time in the collective of a step; infinite before the first one.
    """

    wait_s: float = 0.0
    compute_s: float = 0.0
    collective_s: float = 0.0
    samples: int = 0
    worked_s: float = 0.0
    work: float = 0.0
    slowest: float = 0.0
    num_steps: int = 0
    least_s: float = math.inf

    def add_meeting(self, seconds: float) -> None:
        """Add the time in the collective of a training step."""
        self.collective_s += seconds
        self.num_steps += 1
        self.least_s = min(self.least_s, seconds)

    def by_rank(self, collective: GradientCollective, *, is_sized: bool = False) -> RankFacts:
        """The sums of all ranks; collective over the group.

        The shortest time of any rank and step in the collective is what an all-reduce takes without waiting,
        because in each step one rank comes last. What a rank spends there beyond that is waiting.

        Args:
            is_sized: whether samples differ in size; their work and the waiting are then facts of their own.
        """
        rows = np.zeros((collective.size, 9))
        rows[collective.rank] = astuple(self)
        _, summed = collective.sum((), rows.reshape(-1))
        columns = summed.reshape(rows.shape).T.tolist()
        wait_s, compute_s, collective_s, samples, worked_s, work, _, num_steps, least_s = columns
        summing_s = min(least_s)
        waited_s = [
            max(0.0, seconds - number * summing_s) if number else 0.0
            for seconds, number in zip(collective_s, num_steps, strict=True)
        ]
        return RankFacts(
            wait_s=tuple(wait_s),
            compute_s=tuple(compute_s),
            collective_s=tuple(collective_s),
            samples=tuple(round(number) for number in samples),
            worked_s=tuple(worked_s),
            work=tuple(work) if is_sized else None,
            waited_s=tuple(waited_s) if is_sized else None,
            slowest_work=self.slowest if is_sized else None,
        )


@dataclass
class EpochSums:
    """The sums behind an epoch's metrics, over all ranks of the group."""

    train: Sums = field(default_factory=Sums)
    validation: Sums = field(default_factory=Sums)

    def metrics(self, replica: Replica) -> dict[str, float]:
        """Loss and metrics of the training samples, and with `val_` of the validation samples."""
        validation = replica.metrics(self.validation)
        return {
            **replica.metrics(self.train),
            **{f"{VALIDATION}{name}": value for name, value in validation.items()},
        }

    def to_array(self, num_states: int) -> np.ndarray:
        """The sums as float64 of shape (2, 2 + num_states), for a checkpoint."""
        array = np.zeros((2, 2 + num_states))
        for row, sums in zip(array, (self.train, self.validation), strict=True):
            row[:2] = sums.loss, sums.count
            if len(sums.states):
                row[2:] = sums.states
        return array

    @classmethod
    def from_array(cls, array: np.ndarray) -> EpochSums:
        """Return the sums of the array that `to_array` returned."""
        train, validation = (Sums(float(row[0]), round(float(row[1])), row[2:].copy()) for row in array)
        return cls(train, validation)


@dataclass(frozen=True, slots=True)
class PassResult:
    """Where a pass ended, and how.

    Attributes:
        position: the next sample of the stream.
        complete: whether the pass reached its end.
        too_many_bad: whether it stopped because more samples are broken than allowed.
        seconds: wall time.
        wait_s: the part of `seconds` spent waiting for a batch.
        num_steps: number of steps done.
        num_samples: number of valid samples in these steps, over all ranks.
        num_trained: number of these samples that were in training steps.
        train_s: time in training steps, without waiting for batches.
        own: where this rank spent the time of its training steps.
        samples_per_s: rate of training without the first step, which may trace the network, and without
            waiting for batches, but not more than `augment` allows; None without a training step.
        first_s: time of the first training step; 0 without one.
        augment_s: time spent on `augment` for the training steps, by whichever thread.
    """

    position: Position
    complete: bool
    too_many_bad: bool
    seconds: float
    wait_s: float
    num_steps: int
    num_samples: int
    num_trained: int
    train_s: float
    own: RankTimes
    samples_per_s: float | None = None
    first_s: float = 0.0
    augment_s: float = 0.0

    def facts(
        self,
        ranks: RankFacts | None,
        split: Mapping[str, Any],
        learning_rate: float | None = None,
        evidence: str | None = None,
    ) -> EpochFacts:
        """Measurements for the ledger; of these only `evidence` decides anything.

        Args:
            ranks: `own` of all ranks; None for a group of one rank.
            split: `balance` as returned by `Balancer.take_facts`, `partition`, and `device_busy`, if they
                apply.
            learning_rate: of the last step; None if it does not change.
            evidence: see `EpochFacts`.
        """
        balance, partition = split.get("balance"), split.get("partition")
        return EpochFacts(
            wait_s=self.wait_s,
            num_steps=self.num_steps,
            num_samples=self.num_samples,
            num_trained=self.num_trained,
            trained_s=self.train_s,
            ranks=ranks,
            balance=None if balance is None else BalanceFacts(**_frozen(balance)),
            partition=None if partition is None else PartitionFacts(**_frozen(partition)),
            learning_rate=learning_rate,
            augment_s=self.augment_s or None,
            device_busy=split.get("device_busy"),
            evidence=evidence,
        )


def _rate(num_samples: int, seconds: float) -> float | None:
    return num_samples / seconds if num_samples and seconds > 0.0 else None


def _lower(rate: float | None, limit: float | None) -> float | None:
    return rate if rate is None or limit is None else min(rate, limit)


def _frozen(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


class PassRunner:
    """Runs passes of one group on this rank.

    All ranks of the group perform the same steps: sizes follow from the configuration alone, and a request to
    stop is part of a step's all-reduce, so that no rank is left alone in a collective.

    Args:
        batches: the feeder's batches; their balancer splits the steps.
        max_bad: number of broken samples allowed in a pass, as far as this start trains it; with more, the
            pass stops on all ranks at the same step, before it counts as an epoch. Ranks that make their own
            batches notice it one step later.
        suspended: whether this rank has been asked to stop at the next step.
        between_steps: called before each step with its position, for messages, heartbeats and checkpoints.
        trace: makes the trace of a pass, given its index.
        set_rate: called before each training step with the number of training samples before it.
        evidence: gets the predictions of watched validation items; None: none are watched.
    """

    def __init__(
        self,
        feeder: Feeder,
        batches: Batches,
        num_positions: int,
        max_bad: float,
        replica: Replica,
        collective: GradientCollective,
        suspended: Callable[[], bool],
        between_steps: Callable[[Position], None],
        trace: Callable[[int], StepTrace],
        set_rate: Callable[[int], None] = lambda num_before: None,
        evidence: GroupEvidence | None = None,
    ) -> None:
        self._set_rate = set_rate
        self._evidence = evidence
        self._feeder = feeder
        self._batches = batches
        self._num_positions = num_positions
        self._max_bad = max_bad
        self._replica = replica
        self._collective = collective
        self._suspended = suspended
        self._between_steps = between_steps
        self._trace = trace

    def run(self, start: Position, sums: EpochSums) -> PassResult:
        """Train and validate from `start` to the end of its pass, adding to `sums`.

        Raises:
            GroupFailed: on all ranks of the group, if any of them failed.
        """
        waited = self._feeder.wait_s
        offset, num_steps, too_many_bad, is_confirmed = start.offset, 0, False, True
        num_planned = 0
        num_samples, num_trained, train_s, own = 0, 0, 0.0, RankTimes()
        first_s, first_samples, augment_s = 0.0, 0, 0.0
        trace, waited_before = self._trace(start.pass_index), waited
        # Not what an earlier start left out: the scheduler counts the broken samples of this start only.
        num_before = sums.train.count + sums.validation.count
        with closing(self._feeder.steps(start.pass_index, start.offset)) as steps:
            for step in steps:
                num_valid = sums.train.count + sums.validation.count - num_before + step.num_samples_total
                num_planned += step.num_planned
                too_many_bad = num_planned - num_valid > self._max_bad
                if too_many_bad:
                    break
                self._between_steps(Position(start.pass_index, offset))
                step_began = time.monotonic()
                if step.training:
                    self._set_rate(step.num_before)
                outcome = self._perform(step, sums)
                offset, num_steps, is_confirmed = step.end, num_steps + 1, not step.training
                num_samples += outcome.sums.count
                if step.training:
                    num_trained += outcome.sums.count
                    augment_s += step.augment_s
                    train_s += time.monotonic() - step_began
                    if num_trained == outcome.sums.count:
                        first_s, first_samples = train_s, num_trained
                    self._add(own, step, outcome, self._feeder.wait_s - waited_before, step_began)
                wait_s = self._feeder.wait_s - waited_before
                trace.step(wait_s, step_began, outcome.met_s, outcome.summed_s)
                waited_before = self._feeder.wait_s
                if outcome.suspend:
                    break
        if not is_confirmed:
            confirm_updates(self._replica, self._collective)
        seconds = trace.end()
        return PassResult(
            Position(start.pass_index, offset),
            complete=offset >= self._num_positions,
            too_many_bad=too_many_bad,
            seconds=seconds,
            wait_s=self._feeder.wait_s - waited,
            num_steps=num_steps,
            num_samples=num_samples,
            num_trained=num_trained,
            train_s=train_s,
            own=own,
            samples_per_s=_lower(
                _rate(num_trained - first_samples, train_s - first_s) or _rate(num_trained, train_s),
                _rate(num_trained, augment_s),
            ),
            first_s=first_s,
            augment_s=augment_s,
        )

    def _add(self, own: RankTimes, step: Step, outcome: StepOutcome, wait_s: float, began_s: float) -> None:
        """Add a training step that has just ended."""
        own.wait_s += wait_s
        own.samples += len(step.batch.ids)
        own.work += step.work
        own.slowest += step.slowest
        if self._collective.size > 1:  # a single rank has no collective to arrive at
            exchange = self._replica.exchange
            waited_s = exchange.waited_s if exchange is not None else 0.0
            compute_s = outcome.met_s - began_s - waited_s
            own.compute_s += compute_s
            own.add_meeting(outcome.summed_s - outcome.met_s + waited_s)
            own.worked_s += step.worked_s(compute_s)

    def _perform(self, step: Step, sums: EpochSums) -> StepOutcome:
        """Train or validate.

        A step whose samples are all broken changes no weight, but the ranks still meet in it: no rank may run
        ahead and leave the round while another still waits for its blocks.
        """
        if step.training:
            outcome = train_balanced(self._replica, step, self._batches, self._collective, self._suspended())
            sums.train = sums.train + outcome.sums
        else:
            outcome = self._evaluate(step)
            sums.validation = sums.validation + outcome.sums
        return outcome

    def _evaluate(self, step: Step) -> StepOutcome:
        asked = self._replica, step.batch, self._collective, self._suspended()
        if self._evidence is None:
            return evaluate_step(*asked)
        outcome = evaluate_step(*asked, self._evidence.nothing, self._evidence.numbers)
        self._evidence.add(outcome.numbers)
        return outcome


def train_balanced(
    replica: Replica, step: Step, batches: Batches, collective: GradientCollective, suspend: bool = False
) -> StepOutcome:
    """Train one step and balance the next ones; collective over the group.

    Raises:
        GroupFailed: see `finish_step`.
    """
    balancer = batches.balancer
    balancer.begin_step()
    began_s = time.monotonic()
    computed = compute_step(
        replica,
        step.batch,
        step.num_samples_total,
        collective,
        step.weight,
        step.error,
        may_lack=step.may_lack,
    )
    numbers = balancer.exchange(step, computed.met_s - began_s - computed.waited_s)
    outcome = finish_step(replica, computed, collective, suspend, numbers)
    batches.step_performed()
    balancer.decide(step, outcome.numbers)
    return outcome
