"""Define what a trainer group's balancer does, and choose the balancer of a group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.balance import balances_of, resolve_balance
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.control.splitting.machine import scaled_to_step, step_task
from hpcbal.policies.batching import BatchingPolicy, split_evenly
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu
from hpcbal.policies.selection import StepShares
from hpcbal.runtime.balance.decided_split import DecidedSplit, SplitMemory
from hpcbal.runtime.balance.gpu import DeviceMemory
from hpcbal.runtime.balance.speed_learning import KeptModel, SpeedLearning
from hpcbal.runtime.balance.step import Step, WorkerWatch
from hpcbal.telemetry.resources.resource_use import ResourceProbe
from hpcbal.training.backend import GradientCollective
from hpcbal.training.step import NOTHING
from hpcbal.training.weights import Array


class Balancer(Protocol):
    """Splits the steps of a trainer group over its ranks; used by the feeder and the pass runner."""

    @property
    def plans_ahead(self) -> bool:
        """Whether the next step can be planned while the current one runs, so its batch is fetched ahead.

        Otherwise its shares are known only when the current step has ended. Equal on all ranks; may change
        with each step.
        """

    @property
    def usually_ahead(self) -> bool:
        """Whether `plans_ahead` holds except in the first steps and in the steps after a change."""

    @property
    def weights(self) -> tuple[float, ...]:
        """The part of the work of a step planned now that each rank should get; only proportions count."""

    @property
    def remove(self) -> int | None:
        """The group rank without which the group would be faster, if the master knows one."""

    def start(self) -> None:
        """Agree on the initial shares; collective over the group."""

    def deal(self, start: int, end: int) -> StepShares:
        """Each rank's share of the next step to plan, positions start..end-1; equal on all ranks."""

    def begin_step(self) -> None:
        """Begin a training step: what was left to decide is decided while this rank computes."""

    def exchange(self, step: Step, compute_s: float) -> Array:
        """Measure a step that this rank has computed, and let the group know; collective over the group.

        Args:
            step: the step.
            compute_s: seconds of computing on it, without waiting for others.

        Returns: numbers to sum with the gradients, of the same length on all ranks.
        """

    def decide(self, step: Step, summed: Array) -> None:
        """Decide on later shares, from the sum of what `exchange` returned; collective over the group."""

    def take_facts(self) -> dict[str, Any]:
        """Facts for the ledger, about the time since the last call."""

    def close(self) -> None:
        """Stop the background work."""


class EvenSplit(Balancer):
    """The same share for every rank; measures nothing and costs nothing."""

    plans_ahead = usually_ahead = True
    remove: int | None = None

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    @property
    def weights(self) -> tuple[float, ...]:
        return (1.0,) * self._num_ranks

    def start(self) -> None:
        """Do nothing: all ranks know the shares."""

    def deal(self, start: int, end: int) -> StepShares:
        return StepShares.neighbours(start, self._split(end - start))

    def _split(self, num_samples: int) -> tuple[int, ...]:
        return split_evenly(num_samples, self._num_ranks)

    def begin_step(self) -> None:
        """Do nothing: nothing is decided."""

    def exchange(self, step: Step, compute_s: float) -> Array:
        return NOTHING

    def decide(self, step: Step, summed: Array) -> None:
        """Do nothing: the shares stay as they are."""

    def take_facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Do nothing: nothing runs in the background."""


class FixedSplit(EvenSplit):
    """The same uneven shares in every step; also measures nothing and costs nothing.

    Args:
        sizes: number of samples of each rank in a full step.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(len(sizes))
        self._sizes = sizes

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(map(float, self._sizes))

    def _split(self, num_samples: int) -> tuple[int, ...]:
        """Split smaller steps in the proportions of a full step."""
        return scaled_to_step(num_samples, self._sizes)

    def take_facts(self) -> dict[str, Any]:
        return {"balance": {"shares": list(self._sizes)}}


def make_balancer(
    settings: BalanceConfig,
    dnn: DnnConfig,
    num_train: int,
    collective: GradientCollective,
    memories: dict[str, SplitMemory],
    key: str,
    *,
    kept: KeptModel,
    watch: WorkerWatch | None = None,
    deals_work: bool = False,
) -> Balancer:
    """Make the balancer that the DNN's settings ask for, or else the run's.

    A group of one rank has nothing to balance.

    Args:
        num_train: number of training samples in a pass.
        memories: this rank's memories by key; the group's memory is read from here, or added.
        key: identifies the DNN and the group.
        kept: the file of the group's fitted model.
        watch: measures this rank's own resources.
        deals_work: whether samples differ in size, see `DecidedSplit`.
    """
    balance = resolve_balance(settings, dnn)
    policy: BatchingPolicy[Any] = balance.policy
    if policy.splits_evenly or collective.size == 1 or not num_train:
        return EvenSplit(collective.size)
    num_samples = min(dnn.batch_size, num_train)
    if not policy.decides:
        task = step_task(num_samples, collective.size, settings.max_samples_per_slot)
        return FixedSplit(policy.start(task).batch_sizes)
    learning = memories[key].learning if key in memories else None
    if isinstance(policy, LbBspCpu) and balance.fits_speeds and collective.rank == 0:
        learning = learning or SpeedLearning(dnn.name, policy, settings.first_fit, settings.refit_every, kept)
        policy = learning
    balancer = DecidedSplit(
        dnn.name,
        policy,
        num_samples,
        collective,
        max_samples=settings.max_samples_per_slot,
        memory=memories.get(key),
        watch=watch,
        learning=learning,
        deals_work=deals_work,
    )
    memories[key] = balancer.memory
    return balancer


def make_watch(config: EnsembleConfig, gpu: str | None) -> WorkerWatch:
    """Make the watch of a trainer rank; it measures only what a policy needs.

    Args:
        gpu: id of this trainer's GPU, from `visible_gpus`; None: it has none.
    """
    balances = balances_of(config).values()
    watch = WorkerWatch()
    if any(balance.fits_speeds for balance in balances):
        watch = replace(watch, host=ResourceProbe().read)
    if any(balance.policy.decides for balance in balances) and not config.backend.is_emulated:
        watch = replace(watch, device=DeviceMemory(gpu))
    return watch
