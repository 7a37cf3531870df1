"""Share a step's samples out to the ranks of a trainer group, as its master's policy decides meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcbal.policies.batching import (
    BatchingPolicy,
    BatchTask,
    Decision,
    WorkerLimits,
    scale_shares,
)
from hpcbal.policies.batching.rounding import apportion
from hpcbal.runtime.balance.speed_learning import SpeedLearning
from hpcbal.runtime.balance.step_report import NUM_ROWS, SHARES, observations_of, only_compute, report_of_rank
from hpcbal.runtime.balance.worker_watch import WorkerWatch
from hpcbal.speed_models import SpeedLearner
from hpcbal.training.arrays import Array
from hpcbal.training.collective import GradientCollective

log = logging.getLogger(__name__)

_NOTHING = np.zeros(0)

WARM_UP_STEPS = 2
"""Training steps of a round that tell nothing of speed: models are traced in them, and memory is taken."""


@dataclass
class SplitMemory:
    """What a group knows of its split, kept by each rank for the group's next round.

    Attributes:
        sizes: samples of each rank in a full step.
        state: of the policy; only the master's is used.
        learner: of speeds, where the master has one.
        needed_memory: largest share of its accelerator's memory that this rank has needed, as it belongs to
            the largest batch that its policy remembers.
    """

    sizes: tuple[int, ...]
    state: Any
    learner: SpeedLearner | None = None
    needed_memory: float = 0.0


@dataclass
class BalanceCount:
    """What deciding has cost this rank since it was asked last.

    Attributes:
        num_decisions, seconds: decisions, and how long they took.
        num_changes: times that the group has taken over other shares.
    """

    num_decisions: int = 0
    seconds: float = 0.0
    num_changes: int = 0


class DecidedSplit:
    """Shares that follow a policy of the group's master.

    The master alone decides: the same numbers need not give the same decision on unlike processors, whose
    libraries round differently. All ranks change their shares after the same step.

    - In the background (`fitted`, `lb-bsp-gpu`): each rank's samples and seconds of a training step ride in
      the step's all-reduce, and so does what the master has decided. What is seen in step k is decided while
      step k+1 runs, known to all when it ends, and used from step k+3 on, as step k+2 has been fetched by
      then. A step never waits for a decision; one that is late rides with a later step. Steps that still
      run under shares older than the newest decision are not shown to the policy: it sees what its decisions
      did, nothing else.
    - Fresh (`lb-bsp-cpu`): where the ranks meet before the all-reduce, they tell the master then, and what it
      decides is the answer that lets them go. Where they do not (Horovod), reports ride in the all-reduce as
      well, and the master tells what it decides after it. The next step is fetched after this one.

    The first steps of a round are not shown either, see `WARM_UP_STEPS`. A policy that fails is told once in
    the log and asked no more; the group goes on with its last shares.

    Args:
        name: of the DNN, for the log.
        policy: decides; only the master's is asked.
        num_samples: of a full step.
        collective: of the group.
        is_fresh: which of the two ways.
        max_samples: most samples of a full step that one rank may get; an even share is always allowed.
        memory: what this group knew when it last trained this DNN.
        watch: what this rank sees of its own resources.

    Source: [LBBSP] Alg. 3 and Sec. 4. Deviation: no server; only in fresh mode with
        Horovod there is a wait more.
    """

    def __init__(
        self,
        name: str,
        policy: BatchingPolicy[Any],
        num_samples: int,
        collective: GradientCollective,
        *,
        is_fresh: bool,
        max_samples: int | None = None,
        memory: SplitMemory | None = None,
        watch: WorkerWatch | None = None,
    ) -> None:
        self.is_fresh = is_fresh
        self.count = BalanceCount()
        self.remove: int | None = None
        self._name = name
        self._policy = policy
        self._num_samples = num_samples
        self._collective = collective
        self._watch = watch or WorkerWatch()
        if memory is None:
            state = policy.start(step_task(num_samples, collective.size, max_samples))
            memory = SplitMemory(state.batch_sizes, state)
        self.memory = memory
        self._pending: Future[Decision[Any]] | None = None
        self._offered: set[int] = set()
        self._gave_up = False
        self._num_steps = 0
        is_master = collective.rank == 0
        self._executor = ThreadPoolExecutor(1, "balancer") if is_master and not is_fresh else None
        self._meets = is_fresh and collective.meets
        self._answer = _NOTHING

    def start(self) -> None:
        """As `Balancer.start`: the master's."""
        self._watch.device.begin(self.memory.needed_memory)
        self._tell(np.array(self.memory.state.batch_sizes, np.float64))

    def split(self, num_samples: int) -> tuple[int, ...]:
        """As `Balancer.split`; steps of fewer samples are split in the proportions of a full one."""
        return scaled_to_step(num_samples, self.memory.sizes)

    def report(
        self, num_samples: int, began_s: float, to_worked_s: Callable[[float], float] = only_compute
    ) -> Callable[[float], Array]:
        """As `Balancer.report`: the time until it is called, and the master's newest decision."""

        def arrived(waited_s: float = 0.0) -> Array:
            seconds = to_worked_s(time.monotonic() - began_s - waited_s)
            told = report_of_rank(num_samples, seconds, self._watch)
            self._num_steps += 1
            if self._meets:
                self._answer = self._collective.consult(told, self._decide_now)
                return _NOTHING
            rows = np.zeros((NUM_ROWS, self._collective.size))
            rows[:SHARES, self._collective.rank] = told
            self._collect_decision()
            if self._collective.rank == 0:
                rows[SHARES] = self.memory.state.batch_sizes
            return rows.reshape(-1)

        return arrived

    def take(self, summed: Array, shares: Sequence[int]) -> None:
        """As `Balancer.take`."""
        if self._meets:
            self._adopt(self._answer)
            return
        rows = summed.reshape(NUM_ROWS, self._collective.size)
        if self.is_fresh:
            self._tell(self._decide_now(rows[:SHARES].T) if self._collective.rank == 0 else rows[SHARES])
            return
        self._adopt(rows[SHARES])
        if self._executor is None or self._pending is not None or not self._may_decide():
            return
        state = self.memory.state
        if tuple(shares) == scaled_to_step(sum(shares), state.batch_sizes):
            self._pending = self._executor.submit(self._decide, state, rows[:SHARES].T)

    def take_facts(self) -> dict[str, Any]:
        """As `Balancer.take_facts`: the shares now, changes, and what deciding has taken."""
        count, self.count = self.count, BalanceCount()
        facts = {"shares": list(self.memory.sizes), "changes": count.num_changes, "decided_s": count.seconds}
        if isinstance(self._policy, SpeedLearning):
            facts |= self._policy.take_facts()
        return {"balance": facts | ({} if self.remove is None else {"remove": self.remove})}

    def close(self) -> None:
        """As `Balancer.close`."""
        if self._num_steps:  # else what is needed is another group's, which trained before
            self.memory.needed_memory = self._watch.device.needed
        if self._executor is not None:
            self._executor.shutdown()
            self._collect_decision()
        if isinstance(self._policy, SpeedLearning):
            self._policy.close()

    def _tell(self, shares: Array) -> None:
        """The master's shares to all; the others' are written over."""
        shares = np.ascontiguousarray(shares)
        self._collective.tell(shares)
        self._adopt(shares)

    def _may_decide(self) -> bool:
        """Whether the policy is shown this step of the round."""
        return self._num_steps > WARM_UP_STEPS and not self._gave_up

    def _decide_now(self, reports: Array) -> Array:
        """The shares of the next step, of the reports of this one, while all ranks wait."""
        if self._may_decide():
            decided: Future[Decision[Any]] = Future()
            try:
                decided.set_result(self._decide(self.memory.state, reports))
            except Exception as error:  # whatever a policy raises must not leave the peers waiting
                decided.set_exception(error)
            self._pending = decided
            self._collect_decision()
        return np.array(self.memory.state.batch_sizes, np.float64)

    def _decide(self, state: Any, reports: Array) -> Decision[Any]:
        began = time.perf_counter()
        decision = self._policy.decide(state, observations_of(reports))
        self.count.num_decisions += 1
        self.count.seconds += time.perf_counter() - began
        return decision

    def _collect_decision(self) -> None:
        """Take over what the policy has answered, if it has."""
        if self._pending is None or not self._pending.done():
            return
        pending, self._pending = self._pending, None
        error = pending.exception()
        if error is not None:
            self._gave_up = True
            self.remove = None  # nobody is asked any more whether it still stands
            log.error("%s: balancing ends, the shares stay as they are", self._name, exc_info=error)
            return
        decision = pending.result()
        self.memory.state = decision.state
        if decision.remove is not None and decision.remove not in self._offered:
            self._offered.add(decision.remove)
            log.warning("%s would be faster without rank %d of its group", self._name, decision.remove)
        self.remove = decision.remove

    def _adopt(self, told: Array) -> None:
        sizes = tuple(np.rint(told).astype(np.int64).tolist())
        if sizes != self.memory.sizes:
            self.memory.sizes = sizes
            self.count.num_changes += 1
            log.debug("%s: shares of a step are now %s", self._name, sizes)


def step_task(num_samples: int, num_ranks: int, max_samples: int | None) -> BatchTask:
    """A full step; every rank gets a sample where there are enough, so that all go on being measured."""
    if max_samples is not None:
        max_samples = max(max_samples, -(-num_samples // num_ranks))
    limits = WorkerLimits(min_samples=int(num_samples >= num_ranks), max_samples=max_samples)
    return BatchTask.uniform(num_samples, num_ranks, limits)


def scaled_to_step(num_samples: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """`sizes` for a step of another number of samples; one of validation may hold more than a full one."""
    total = sum(sizes)
    if num_samples == total:
        return tuple(sizes)
    return scale_shares(num_samples, sizes) if num_samples < total else apportion(num_samples, sizes)
