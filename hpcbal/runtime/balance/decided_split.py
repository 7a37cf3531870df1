"""Perform what a group's splitting machine decides: with a thread on the master, and collectives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcbal.control.splitting import (
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
from hpcbal.policies.batching import BatchingPolicy, Cadence
from hpcbal.runtime.balance.speed_learning import SpeedLearning
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.balance.step_report import (
    NUM_FACTS,
    observations_of,
    report_of_rank,
)
from hpcbal.runtime.balance.worker_watch import WorkerWatch
from hpcbal.speed_models import SpeedLearner
from hpcbal.training.arrays import Array
from hpcbal.training.collective import GradientCollective
from hpcbal.values.selection import StepShares

log = logging.getLogger(__name__)

_NOTHING = np.zeros(0)


@dataclass
class SplitMemory:
    """What a group knows of its split, kept by each rank for the group's next round.

    Attributes:
        state: of the policy; only the master's is used.
        num_quiet: decisions in a row that moved few samples, see `Splitting`.
        learner: of speeds, where the master has one.
        needed_memory: largest share of its accelerator's memory that this rank has needed, as it belongs to
            the largest batch that its policy remembers.
    """

    state: Any
    num_quiet: int = 0
    learner: SpeedLearner | None = None
    needed_memory: float = 0.0


class DecidedSplit:
    """Performs a group's `Splitting`: asks the policy, and carries reports and announcements.

    The master alone decides: the same numbers need not give the same decision on unlike processors, whose
    libraries round differently. All ranks change their shares after the same step. How reports and
    announcements travel depends on whether steps wait for decisions now:

    - They do not: each rank's samples and seconds of a training step ride in the step's all-reduce, and so
      does the master's announcement. What is seen in step k is decided while step k+1 runs, announced when
      that one ends, and used from step k+3 on, as step k+2 has been planned by then. A decision that is late
      rides with a later step.
    - They do: where the ranks meet before the all-reduce, the master gets all reports there, and its
      announcement is the answer that lets them go. Where they do not meet (Horovod), reports ride in the
      all-reduce, and the master announces after it. What is seen in step k is used in step k+1.

    Args:
        name: of the DNN, for the log.
        policy: decides; only the master's is asked.
        num_samples: of a full step.
        collective: of the group.
        max_samples: most samples of a full step that one rank may get; an even share is always allowed.
        memory: what this group knew when it last trained this DNN.
        watch: what this rank sees of its own resources.

    Attributes:
        machine: of this rank.
        memory: see `SplitMemory`; up to date when closed.

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
    ) -> None:
        self._name = name
        self._policy = policy
        self._collective = collective
        self._watch = watch or WorkerWatch()
        self.memory = memory or SplitMemory(
            policy.start(step_task(num_samples, collective.size, max_samples))
        )
        self.machine = Splitting(SplitRules.of(policy), self.memory.state, self.memory.num_quiet)
        self._is_master = collective.rank == 0
        self._executor = ThreadPoolExecutor(1, "balancer") if self._is_master else None
        self._pending: Future[SplitEvent] | None = None
        self._error: Exception | None = None
        self._answer = _NOTHING
        self._has_reported = False
        self._decided_s = 0.0
        self._num_changes = 0

    @property
    def plans_ahead(self) -> bool:
        """As `Balancer.plans_ahead`."""
        return not self.machine.at_once

    @property
    def usually_ahead(self) -> bool:
        """As `Balancer.usually_ahead`."""
        return self.machine.rules.cadence is not Cadence.EVERY_STEP

    @property
    def remove(self) -> int | None:
        """As `Balancer.remove`; only the master knows."""
        return self.machine.remove

    def start(self) -> None:
        """As `Balancer.start`: the master's."""
        self._watch.device.begin(self.memory.needed_memory)
        self._tell()

    def deal(self, start: int, end: int) -> StepShares:
        """As `Balancer.deal`: neighbours for each rank."""
        return StepShares.neighbours(start, self.machine.split(end - start))

    def report(self, step: Step, began_s: float) -> Callable[[float], Array]:
        """As `Balancer.report`: what this rank has seen, and the master's announcement."""

        def arrived(waited_s: float = 0.0) -> Array:
            seen = report_of_rank(step, time.monotonic() - began_s - waited_s, self._watch)
            self._has_reported = True
            size = self._collective.size
            if self._meets:
                self._answer = self._collective.consult(
                    seen, lambda all_: self._answer_to(step, all_), size + 1
                )
                return _NOTHING
            numbers = np.zeros(NUM_FACTS * size + size + 1)
            numbers[: NUM_FACTS * size].reshape(size, NUM_FACTS)[self._collective.rank] = seen
            self._collect_decision()
            if self._is_master:
                numbers[NUM_FACTS * size :] = self._announcement()
            return numbers

        return arrived

    def take(self, summed: Array, step: Step) -> None:
        """As `Balancer.take`."""
        if self._meets:
            self._follow(self._answer)
            return
        size = self._collective.size
        reports = summed[: NUM_FACTS * size].reshape(size, NUM_FACTS)
        if self.machine.at_once:
            if self._is_master:
                self._decide_at_once(step, reports)
            self._tell()
            return
        self._follow(summed[NUM_FACTS * size :])
        if self._executor is not None:
            ask = self._measured(step, reports)
            if ask is not None:
                self._pending = self._executor.submit(self._ask, ask)

    def take_facts(self) -> dict[str, Any]:
        """As `Balancer.take_facts`: the shares now, changes, and what deciding has taken."""
        machine = self.machine
        facts = {
            "shares": list(machine.in_force.batch_sizes),
            "changes": machine.num_changes - self._num_changes,
            "decided_s": self._decided_s,
        }
        self._num_changes, self._decided_s = machine.num_changes, 0.0
        if isinstance(self._policy, SpeedLearning):
            facts |= self._policy.take_facts()
        return {"balance": facts | ({} if self.remove is None else {"remove": self.remove})}

    def close(self) -> None:
        """As `Balancer.close`."""
        if self._has_reported:  # else what is needed is another group's, which trained before
            self.memory.needed_memory = self._watch.device.needed
        if self._executor is not None:
            self._executor.shutdown()
            self._collect_decision()
        self.memory.state, self.memory.num_quiet = self.machine.state, self.machine.num_quiet
        if isinstance(self._policy, SpeedLearning):
            self._policy.close()

    # ---- what travels ------------------------------------------------------------------------

    @property
    def _meets(self) -> bool:
        """Whether the ranks meet before the all-reduce of this step, and hear there what is decided."""
        return self.machine.at_once and self._collective.meets

    def _announcement(self) -> Array:
        """The master's announcement as numbers."""
        now = self.machine.announcement
        return np.array([*now.batch_sizes, now.at_once], np.float64)

    def _follow(self, numbers: Array) -> None:
        """Follow the master's announcement."""
        *sizes, at_once = np.rint(numbers).astype(np.int64).tolist()
        self.machine.handle(Announced(Announcement(tuple(sizes), bool(at_once))))

    def _tell(self) -> None:
        """Send the master's announcement to all; what the others hold is written over."""
        numbers = self._announcement()
        self._collective.tell(numbers)
        self._follow(numbers)

    # ---- the master --------------------------------------------------------------------------

    def _answer_to(self, step: Step, reports: Array) -> Array:
        """The announcement, decided while all ranks wait: it must not raise."""
        self._decide_at_once(step, reports)
        return self._announcement()

    def _decide_at_once(self, step: Step, reports: Array) -> None:
        if self._pending is not None:
            self._pending.exception()  # waits for it; of the step before, so it has nearly always ended
        self._collect_decision()
        ask = self._measured(step, reports)
        if ask is not None:
            self._perform(self._ask(ask))

    def _measured(self, step: Step, reports: Array) -> AskPolicy | None:
        """What the machine wants to be asked about a step, if anything."""
        for action in self.machine.handle(StepMeasured(step.shares.counts, observations_of(reports))):
            assert isinstance(action, AskPolicy), action
            return action
        return None

    def _ask(self, ask: AskPolicy) -> SplitEvent:
        """The policy's answer; whatever it raises must not leave the other ranks waiting."""
        began = time.perf_counter()
        try:
            return Decided(self._policy.decide(ask.state, ask.observations))
        except Exception as error:
            self._error = error
            return PolicyFailed(repr(error))
        finally:
            self._decided_s += time.perf_counter() - began

    def _collect_decision(self) -> None:
        """Take over what the policy has answered in the background, if it has."""
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
                        "%s: balancing ends, the shares stay as they are: %s",
                        self._name,
                        problem,
                        exc_info=self._error,
                    )
