"""Carry out the decisions of a group's splitting machine, with a thread on the master and collectives."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcbal.control.splitting.machine import (
    Announced,
    Announcement,
    AskPolicy,
    Decided,
    GiveUp,
    Offer,
    PolicyFailed,
    SplitEvent,
    SplitRules,
    Splitting,
    StepMeasured,
    step_task,
)
from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchingPolicy, Cadence
from hpcbal.policies.selection import StepShares
from hpcbal.runtime.balance.speed_learning import SpeedLearning
from hpcbal.runtime.balance.step import (
    NUM_FACTS,
    Step,
    WorkerWatch,
    observations_of,
    report_of_rank,
)
from hpcbal.training.backend import GradientCollective
from hpcbal.training.step import NOTHING
from hpcbal.training.weights import Array

log = logging.getLogger(__name__)


@dataclass
class SplitMemory:
    """A group's knowledge about its split; each rank keeps it for the group's next round.

    Attributes:
        state: the policy's state; only the master's is used.
        num_quiet: consecutive decisions that moved few samples, see `Splitting`.
        learning: the master's policy, if it learns speeds while it decides.
        needed_memory: largest share of its accelerator's memory that this rank has needed; it belongs to the
            largest batch that the policy remembers.
    """

    state: Any
    num_quiet: int = 0
    learning: SpeedLearning | None = None
    needed_memory: float = 0.0


class DecidedSplit:
    """Drives a group's `Splitting`: asks the policy, and transports reports and announcements.

    It is a `Balancer`. Only the master decides: the same numbers may give different decisions on different
    processors, because their libraries round differently. All ranks change their shares after the same step.
    How reports and announcements travel depends on whether steps currently wait for decisions:

    - They do not wait: each rank's samples and seconds of a training step are part of the step's all-reduce,
      and so is the master's announcement. A measurement of step k is decided on while step k+1 runs,
      announced when step k+1 ends, and used from step k+3 on, because step k+2 has been planned by then. A
      late decision is announced with a later step.
    - They wait: if the ranks meet before the all-reduce, the master gets all reports there, and its
      announcement is the answer that lets them continue. If they do not meet (Horovod), the reports are part
      of the all-reduce, and the master announces after it. A measurement of step k is used in step k+1.

    Args:
        name: name of the DNN, for the log.
        policy: makes the decisions; only the master's is asked.
        num_samples: number of samples in a full step.
        collective: the group's collective.
        max_samples: largest number of samples of a full step that one rank may get; an even share is always
            allowed.
        memory: what this group knew when it last trained this DNN.
        watch: measures this rank's own resources.
        learning: the policy, if it learns speeds while it decides; adds facts.
        deals_work: whether samples differ in size, so that announcements carry `weights` too. They are twice
            as long then, which shows with many ranks.

    Attributes:
        machine: this rank's splitting machine.
        memory: see `SplitMemory`; up to date once closed.

    Source: [LBBSP] Alg. 3 and Sec. 4. Deviation: no server.
    """

    def __init__(
        self,
        name: str,
        policy: BatchingPolicy[Any],
        num_samples: int,
        collective: GradientCollective,
        *,
        max_samples: int | None = None,
        memory: SplitMemory | None = None,
        watch: WorkerWatch | None = None,
        learning: SpeedLearning | None = None,
        deals_work: bool = False,
    ) -> None:
        self._name = name
        self._policy = policy
        self._collective = collective
        self._watch = watch or WorkerWatch()
        self.memory = memory or SplitMemory(
            policy.start(step_task(num_samples, collective.size, max_samples))
        )
        self.memory.learning = learning
        self.machine = Splitting(SplitRules.of(policy), self.memory.state, self.memory.num_quiet)
        self._deals_work = deals_work
        self._length = (2 if deals_work else 1) * collective.size + 1  # of an announcement
        self._followed = b""
        self._is_master = collective.rank == 0
        self._executor = ThreadPoolExecutor(1, "balancer") if self._is_master else None
        self._question: AskPolicy | None = None  # to be asked when the next step is being computed
        self._pending: Future[SplitEvent] | None = None
        self._error: Exception | None = None
        self._has_measured = False
        self._decided_s = 0.0
        self._num_changes = 0

    @property
    def plans_ahead(self) -> bool:
        """See `Balancer.plans_ahead`."""
        return not self.machine.at_once

    @property
    def usually_ahead(self) -> bool:
        """See `Balancer.usually_ahead`."""
        return self.machine.rules.cadence is not Cadence.EVERY_STEP

    @property
    def weights(self) -> tuple[float, ...]:
        """See `Balancer.weights`."""
        return self.machine.in_force.weights

    @property
    def remove(self) -> int | None:
        """See `Balancer.remove`; only the master knows it."""
        return self.machine.remove

    def start(self) -> None:
        """See `Balancer.start`; the group starts with the master's shares."""
        self._watch.device.begin(self.memory.needed_memory)
        self._announce()

    def deal(self, start: int, end: int) -> StepShares:
        """See `Balancer.deal`; each rank gets consecutive samples."""
        return StepShares.neighbours(start, self.machine.split(end - start))

    def begin_step(self) -> None:
        """See `Balancer.begin_step`: the policy is asked in the background about the step before.

        Asked when that step ended, it would keep the master's own thread from planning and beginning this
        one: only one of them can run Python.
        """
        if self._executor is not None and self._question is not None:
            self._pending = self._executor.submit(self._ask, self._question)
            self._question = None

    def exchange(self, step: Step, compute_s: float) -> Array:
        """See `Balancer.exchange`.

        If steps wait for decisions and the ranks can meet here, all of them get the decision here, and there
        is nothing to sum. Otherwise the sum carries their measurements and the master's announcement.
        """
        measured = report_of_rank(step, compute_s, self._watch)
        self._has_measured = True
        if self.machine.at_once and self._collective.meets:
            self._follow(self._collective.consult(measured, partial(self._answer, step), self._length))
            return NOTHING
        self._collect_decision()
        size = self._collective.size
        numbers = np.zeros(NUM_FACTS * size + self._length)
        numbers[: NUM_FACTS * size].reshape(size, NUM_FACTS)[self._collective.rank] = measured
        if self._is_master:
            numbers[NUM_FACTS * size :] = self._announcement()
        return numbers

    def decide(self, step: Step, summed: Array) -> None:
        """See `Balancer.decide`: now if steps wait for decisions, otherwise beside the next one."""
        if not summed.size:
            return  # they have met, and follow the decision already
        size = self._collective.size
        measured, announcement = np.split(summed, [NUM_FACTS * size])
        reports = measured.reshape(size, NUM_FACTS)
        if self.machine.at_once:
            if self._is_master:
                self._decide_at_once(step, reports)
            self._announce()
            return
        self._follow(announcement)
        if self._is_master:
            self._question = self._measured(step, reports) or self._question

    def take_facts(self) -> dict[str, Any]:
        """See `Balancer.take_facts`: the current shares, the number of changes, and the time to decide."""
        machine = self.machine
        facts = {
            "shares": list(machine.in_force.batch_sizes),
            "changes": machine.num_changes - self._num_changes,
            "decided_s": self._decided_s,
        }
        self._num_changes, self._decided_s = machine.num_changes, 0.0
        if self.memory.learning is not None:
            facts |= self.memory.learning.take_facts()
        return {"balance": facts | ({} if self.remove is None else {"remove": self.remove})}

    def close(self) -> None:
        """See `Balancer.close`."""
        if self._has_measured:  # otherwise the needed memory is that of the group that trained before
            self.memory.needed_memory = self._watch.device.needed
        if self._executor is not None:
            self.begin_step()
            self._executor.shutdown()
            self._collect_decision()
        self.memory.state, self.memory.num_quiet = self.machine.state, self.machine.num_quiet

    # ---- what travels ------------------------------------------------------------------------

    def _announcement(self) -> Array:
        """The master's announcement as numbers."""
        now = self.machine.announcement
        weights = now.weights if self._deals_work else ()
        return np.array([*now.batch_sizes, now.at_once, *weights], np.float64)

    def _follow(self, numbers: Array) -> None:
        """Follow the master's announcement; most repeat the one before."""
        received = numbers.tobytes()
        if received == self._followed:
            return
        self._followed = received
        size = self._collective.size
        *sizes, at_once = np.rint(numbers[: size + 1]).astype(np.int64).tolist()
        weights = tuple(numbers[size + 1 :].tolist())
        self.machine.handle(Announced(Announcement(tuple(sizes), bool(at_once), weights)))

    def _announce(self) -> None:
        """Send the master's announcement to all ranks; it overwrites the other ranks' numbers."""
        numbers = self._announcement()
        self._collective.tell(numbers)
        self._follow(numbers)

    # ---- the master --------------------------------------------------------------------------

    def _answer(self, step: Step, reports: Array) -> Array:
        """The announcement, decided while all ranks wait; must not raise."""
        self._decide_at_once(step, reports)
        return self._announcement()

    def _decide_at_once(self, step: Step, reports: Array) -> None:
        if self._pending is not None:
            self._pending.exception()  # wait for the previous step's decision, which has nearly always ended
        self._collect_decision()
        ask = self._measured(step, reports)
        if ask is not None:
            self._perform(self._ask(ask))

    def _measured(self, step: Step, reports: Array) -> AskPolicy | None:
        """The question that the machine has for the policy after a step, if any."""
        try:
            observations = observations_of(reports)
        except PolicyError as error:  # the other ranks wait, so only balancing ends
            self._error = error
            self._perform(PolicyFailed(str(error)))
            return None
        for action in self.machine.handle(StepMeasured(step.counts, observations)):
            assert isinstance(action, AskPolicy), action
            return action
        return None

    def _ask(self, ask: AskPolicy) -> SplitEvent:
        """The policy's answer; an exception must not leave the other ranks waiting."""
        began = time.perf_counter()
        try:
            return Decided(self._policy.decide(ask.state, ask.observations))
        except Exception as error:
            self._error = error
            return PolicyFailed(repr(error))
        finally:
            self._decided_s += time.perf_counter() - began

    def _collect_decision(self) -> None:
        """Take the policy's answer from the background thread, if it is there."""
        if self._pending is not None and self._pending.done():
            pending, self._pending = self._pending, None
            self._perform(pending.result())

    def _perform(self, event: SplitEvent) -> None:
        for action in self.machine.handle(event):
            match action:
                case Offer(rank):
                    log.warning("%s would be faster without rank %d of its group", self._name, rank)
                case GiveUp(problem):
                    log.error(
                        "%s: balancing stops and the shares stay as they are: %s",
                        self._name,
                        problem,
                        exc_info=self._error,
                    )
