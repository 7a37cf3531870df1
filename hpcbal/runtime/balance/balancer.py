"""Choose how a trainer group splits its steps over its ranks, and say what is asked of such a split."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from hpcbal.cluster.accelerators import visible_gpus
from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.balance import balances_of, resolve_balance
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.control.splitting import scaled_to_step, step_task
from hpcbal.policies.batching import BatchingPolicy, split_evenly
from hpcbal.policies.batching.guard import Guard
from hpcbal.runtime.balance.decided_split import DecidedSplit, SplitMemory
from hpcbal.runtime.balance.device_memory import DeviceMemory
from hpcbal.runtime.balance.kept_models import KeptModel
from hpcbal.runtime.balance.speed_learning import SpeedLearning
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.balance.worker_watch import WorkerWatch
from hpcbal.speed_models import SpeedLearner
from hpcbal.speed_models.fit_process import FitProcess
from hpcbal.telemetry.host.resource_use import ResourceProbe
from hpcbal.training.arrays import Array
from hpcbal.training.collective import GradientCollective
from hpcbal.values.selection import StepShares

log = logging.getLogger(__name__)


class Balancer(Protocol):
    """A group's way to split its steps, for what feeds and runs a pass."""

    @property
    def plans_ahead(self) -> bool:
        """Whether a step can be planned now while the one before runs, so that its batch is fetched ahead.

        Otherwise its shares are known only when the step before has ended. Equal on all ranks; may change
        with each step.
        """

    @property
    def usually_ahead(self) -> bool:
        """Whether that is so apart from the first steps, and those after a change."""

    @property
    def remove(self) -> int | None:
        """Rank of the group without which it would be faster, as far as the master knows."""

    def start(self) -> None:
        """Agree on the shares to begin with; collective over the group."""

    def deal(self, start: int, end: int) -> StepShares:
        """What each rank takes of the next step that is planned, start..end-1; equal on all ranks."""

    def report(self, step: Step, began_s: float) -> Callable[[float], Array] | None:
        """What this rank reports of a training step when it meets the others; None: nothing.

        It is asked with the seconds that the rank has waited for others since it began.

        Args:
            step: that is computed.
            began_s: `time.monotonic` when it began to compute.
        """

    def take(self, summed: Array, step: Step) -> None:
        """What all ranks have reported of a training step, summed; collective over the group."""

    def take_facts(self) -> dict[str, Any]:
        """For the ledger, of the time since the last call."""

    def close(self) -> None:
        """End what runs in the background."""


class EvenSplit:
    """The same share for every rank; measures nothing and costs nothing."""

    plans_ahead = usually_ahead = True
    remove: int | None = None

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    def start(self) -> None:
        """As `Balancer.start`; all ranks know the shares."""

    def deal(self, start: int, end: int) -> StepShares:
        """As `Balancer.deal`."""
        return StepShares.neighbours(start, self._split(end - start))

    def _split(self, num_samples: int) -> tuple[int, ...]:
        return split_evenly(num_samples, self._num_ranks)

    def report(self, step: Step, began_s: float) -> None:
        """As `Balancer.report`."""

    def take(self, summed: Array, step: Step) -> None:
        """As `Balancer.take`."""

    def take_facts(self) -> dict[str, Any]:
        """As `Balancer.take_facts`: none."""
        return {}

    def close(self) -> None:
        """As `Balancer.close`."""


class FixedSplit(EvenSplit):
    """The same uneven shares in every step; measures nothing and costs nothing either.

    Args:
        sizes: samples of each rank in a full step.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(len(sizes))
        self._sizes = sizes

    def _split(self, num_samples: int) -> tuple[int, ...]:
        """Steps of fewer samples are split in the proportions of a full one."""
        return scaled_to_step(num_samples, self._sizes)

    def take_facts(self) -> dict[str, Any]:
        """As `Balancer.take_facts`: the shares."""
        return {"balance": {"shares": list(self._sizes)}}


def make_balancer(
    settings: BalanceConfig,
    dnn: DnnConfig,
    num_train: int,
    collective: GradientCollective,
    memories: dict[str, SplitMemory],
    key: str,
    *,
    kept: Callable[[str], KeptModel],
    watch: WorkerWatch | None = None,
) -> Balancer:
    """The balancer of a group as its DNN or else the run wants it; a group of one has nothing to balance.

    Args:
        num_train: training samples of a pass.
        memories: of this rank, by key; the group's is found there, or put there.
        key: names DNN and group.
        kept: the group's fitted model in the output directory, by predictor.
        watch: what this rank sees of its own resources.
    """
    balance = resolve_balance(settings, dnn)
    policy: BatchingPolicy[Any] = balance.policy
    if policy.splits_evenly or collective.size == 1 or not num_train:
        return EvenSplit(collective.size)
    num_samples = min(dnn.batch_size, num_train)
    if not policy.decides:
        task = step_task(num_samples, collective.size, settings.max_samples_per_gpu)
        return FixedSplit(policy.start(task).batch_sizes)
    learner = memories[key].learner if key in memories else None
    if balance.fits_speeds and collective.rank == 0:
        model = kept(balance.predictor)
        learner = learner or make_learner(settings, collective.size, model)
        policy = SpeedLearning(dnn.name, learner, FitProcess(), model)
    balancer = DecidedSplit(
        dnn.name,
        policy,
        num_samples,
        collective,
        max_samples=settings.max_samples_per_gpu,
        memory=memories.get(key),
        watch=watch,
    )
    balancer.memory.learner = learner
    memories[key] = balancer.memory
    return balancer


def make_learner(settings: BalanceConfig, num_workers: int, kept: KeptModel) -> SpeedLearner:
    """The learner of a group that trains for the first time since the start; it may know an earlier model."""
    model = kept.read()
    if model is not None:
        log.info("speeds are predicted by the model in %s", kept.path)
    return SpeedLearner(
        settings.predictor,
        num_workers,
        model,
        settings.first_fit,
        settings.refit_every,
        guard=Guard() if settings.guard else None,
    )


def make_watch(config: EnsembleConfig, local_slot: int) -> WorkerWatch:
    """What a trainer rank looks at: only what a policy asks for.

    Args:
        local_slot: number of this trainer on its node.
    """
    balances = balances_of(config).values()
    watch = WorkerWatch()
    if any(balance.reads_host for balance in balances):
        watch = replace(watch, host=ResourceProbe().read)
    if any(balance.policy.decides for balance in balances) and config.backend.name == "tensorflow":
        watch = replace(watch, device=DeviceMemory(visible_gpus(), local_slot))
    return watch
