"""One step of a trainer group: every sample counts once, and the ranks succeed or fail together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcbal.processes import leave_if_forked
from hpcbal.training.backend import Batch, Contribution, GradientCollective, Replica, Sums
from hpcbal.training.groups import CAUSES, USER_ERRORS, GroupFailed, as_exception, cause_of, detail_of
from hpcbal.training.weights import Array

SUSPEND = len(CAUSES)
LOSS, COUNT = SUSPEND + 1, SUSPEND + 2
STATUS_LENGTH = COUNT + 1
"""The status vector begins with a failure flag per cause, the suspend flag, and the sums of loss and samples.

The sums behind the metrics follow, and then further numbers of the ranks."""

NOTHING = np.zeros(0)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step, equal on all ranks of the group.

    Attributes:
        sums: sums over the samples of all ranks.
        suspend: whether any rank requested a stop; the step itself was done.
        numbers: sum of the further numbers, float64, shape (k,).
        met_s, summed_s: `time.monotonic` when this rank was ready to meet and when it had the sums;
            the difference includes waiting for the slowest rank. Equal in a group of one rank.
    """

    sums: Sums
    suspend: bool
    numbers: Array = field(default_factory=lambda: NOTHING, compare=False)
    met_s: float = field(default=0.0, compare=False)
    summed_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Computed:
    """A training step that this rank has computed, and that the group has not summed yet.

    Attributes:
        contribution: of this rank; zeros if it failed.
        error: what went wrong, if anything.
        num_samples_total: samples of the step over all ranks.
        is_applied: whether the weights have changed already: that of a group of one rank.
        met_s: `time.monotonic` when this rank had computed.
        waited_s: seconds that it has waited for others within the step (synchronised layers).
        may_lack: see `compute_step`.
        counts_samples: whether each sample counts 1 / num_samples_total in the sum.
    """

    contribution: Contribution
    error: Exception | None
    num_samples_total: int
    is_applied: bool
    met_s: float
    waited_s: float
    may_lack: bool = False
    counts_samples: bool = True


def train_step(
    replica: Replica,
    batch: Batch,
    num_samples_total: int,
    collective: GradientCollective,
    suspend: bool = False,
    weight: float | None = None,
) -> StepOutcome:
    """Compute on this rank's samples, sum over the group, apply; collective over the group.

    Args, Raises: see `compute_step` and `finish_step`.
    """
    computed = compute_step(replica, batch, num_samples_total, collective, weight)
    return finish_step(replica, computed, collective, suspend)


def compute_step(
    replica: Replica,
    batch: Batch,
    num_samples_total: int,
    collective: GradientCollective,
    weight: float | None = None,
    error: Exception | None = None,
    *,
    may_lack: bool = False,
) -> Computed:
    """Compute on this rank's samples; `finish_step` must follow on all ranks.

    A rank that fails still enters the all-reduce, with zeros and a flag. So no rank waits forever, and none
    applies an update that another one lacks; `StepExchange` does the same for the sums within the step in
    models with synchronised layers. A group of one rank computes and applies at once.

    Args:
        replica: weights that are equal on all ranks of the group.
        batch: this rank's samples; may be empty.
        num_samples_total: samples of the step over all ranks; 0 (all samples broken) changes no weight.
        collective: collective of the group.
        weight: what this rank's mean gradient counts in the sum, 0..1; None: its share of the samples, so
            every sample counts once.
        error: why this rank cannot compute the step at all; it then fails with it.
        may_lack: whether fewer samples than `num_samples_total` may turn out to be there, because ranks do
            not know which samples of the others are broken. The sum is then corrected; with a `weight` it is
            right as it is, because that weighs the mean of the samples that are there.

    Source: weights samples/total as in [LBBSP] Eq. 7.
    """
    if collective.size == 1 and weight in (None, 1.0) and len(batch.ids) == num_samples_total:
        nothing = Contribution((), Sums())
        contribution, error = _attempt(
            replica, batch, lambda: Contribution((), replica.train_alone(batch)), nothing, error
        )
        return Computed(contribution, error, num_samples_total, True, time.monotonic(), 0.0)
    exchange = replica.exchange if collective.size > 1 else None
    if exchange is not None:
        exchange.begin(collective)
    contribution, error = _attempt(
        replica, batch, lambda: replica.compute(batch, num_samples_total, weight), replica.zeros(), error
    )
    if exchange is not None:
        if error is None and not len(batch.ids):
            exchange.follow()
        error = exchange.end(error)
    waited_s = exchange.waited_s if exchange is not None else 0.0
    now_s = time.monotonic()
    lacks = (may_lack, weight is None)
    return Computed(contribution, error, num_samples_total, False, now_s, waited_s, *lacks)


def finish_step(
    replica: Replica,
    computed: Computed,
    collective: GradientCollective,
    suspend: bool = False,
    numbers: Array = NOTHING,
) -> StepOutcome:
    """Sum a step over the group and apply it; collective over the group.

    If the update itself fails, after the sum, the peers cannot learn of it in this step. They learn of it in
    the next step, in `evaluate_step` or in `confirm_updates`.

    Args:
        replica: as for `compute_step`, which gave `computed`.
        collective: collective of the group.
        suspend: whether this rank wants the group to stop after this step.
        numbers: further numbers to sum with the gradients, shape (k,), k equal on all ranks. They have the
            gradients' type: float32 holds whole numbers up to 2**24.

    Raises:
        GroupFailed: on all ranks, if any rank failed. Weights have not changed, except perhaps those of a
            group of one rank whose memory ended; its replica is not used again.
    """
    tensors, outcome = reduce_step(
        collective,
        computed.contribution,
        computed.error,
        suspend,
        numbers,
        computed.met_s,
        replica.num_states,
    )
    if computed.is_applied:
        return outcome
    count, total = outcome.sums.count, computed.num_samples_total
    if count != total and not computed.may_lack:
        raise GroupFailed(
            "error",
            f"the ranks of the group hold {count} samples of a step of {total}",
            local=False,
        )
    if count:
        if count != total and computed.counts_samples:
            tensors = [tensor * (total / count) for tensor in tensors]
        try:
            replica.apply(tensors)
        except USER_ERRORS as failed_update:
            replica.broken = as_exception(failed_update)
    return outcome


def evaluate_step(
    replica: Replica,
    batch: Batch,
    collective: GradientCollective,
    suspend: bool = False,
    numbers: Array = NOTHING,
    observe: Callable[[Replica, Batch], Array] | None = None,
) -> StepOutcome:
    """Evaluate this rank's samples, if any, and sum over the group; collective over the group.

    Args:
        numbers: further numbers of a rank that has no samples, shape (k,).
        observe: returns those of a rank that has some; fails like the evaluation. None: they are the same.

    Raises:
        GroupFailed: on all ranks, if any rank failed.
    """
    observed = numbers

    def evaluate() -> Contribution:
        nonlocal observed
        sums = replica.evaluate(batch)
        if observe is not None:
            observed = observe(replica, batch)
        return Contribution((), sums)

    contribution, error = _attempt(replica, batch, evaluate, Contribution((), Sums()))
    return reduce_step(collective, contribution, error, suspend, observed, num_states=replica.num_states)[1]


def confirm_updates(replica: Replica, collective: GradientCollective) -> None:
    """Make sure that the last update has failed on no rank; collective over the group.

    Raises:
        GroupFailed: on all ranks, if it has failed on any.
    """
    reduce_step(collective, Contribution((), Sums()), replica.broken, num_states=replica.num_states)


def _attempt(
    replica: Replica,
    batch: Batch,
    compute: Callable[[], Contribution],
    nothing: Contribution,
    before: Exception | None = None,
) -> tuple[Contribution, Exception | None]:
    if replica.broken is not None or before is not None:
        return nothing, replica.broken or before
    if not len(batch.ids):
        return nothing, None
    try:
        result, failure = compute(), None
    except USER_ERRORS as error:  # any exception from a model must reach the peers as a flag
        result, failure = nothing, as_exception(error)
    leave_if_forked("a model")
    return result, failure


def reduce_step(
    collective: GradientCollective,
    contribution: Contribution,
    error: Exception | None = None,
    suspend: bool = False,
    numbers: Array = NOTHING,
    met_s: float | None = None,
    num_states: int = 0,
) -> tuple[Sequence[Any], StepOutcome]:
    """The part between computing and applying: sum tensors and status, and find out which ranks failed.

    Args:
        contribution: contribution of this rank; zeros if it failed.
        error: what went wrong on this rank, if anything.
        suspend: whether this rank wants to stop.
        numbers: further numbers to sum, shape (k,).
        met_s: when this rank went to meet the others; None: now.
        num_states: number of sums behind the metrics, equal on all ranks.

    Returns:
        The summed tensors, and the outcome.

    Raises:
        GroupFailed: on all ranks, if any rank failed; includes the detail on the failing rank.
    """
    num_sums = STATUS_LENGTH + num_states
    status = np.zeros(num_sums + numbers.size)
    status[num_sums:] = numbers
    if error is not None:
        status[CAUSES.index(cause_of(error))] = 1.0
    status[SUSPEND] = float(suspend)
    sums = contribution.sums
    status[LOSS], status[COUNT] = sums.loss, sums.count
    if len(sums.states):
        status[STATUS_LENGTH:num_sums] = sums.states
    began_s = time.monotonic() if met_s is None else met_s
    tensors, status = collective.sum(contribution.tensors, status)
    summed_s = time.monotonic() if collective.size > 1 else began_s
    for flag, cause in enumerate(CAUSES):
        if status[flag] > 0.0:
            if error is not None:
                raise GroupFailed(cause_of(error), detail_of(error), local=True) from error
            raise GroupFailed(cause, "another rank of the group failed; its log has the details", local=False)
    states = np.asarray(status[STATUS_LENGTH:num_sums], np.float64)
    total = Sums(float(status[LOSS]), round(float(status[COUNT])), states)
    is_suspended = bool(status[SUSPEND] > 0.0)
    return tensors, StepOutcome(total, is_suspended, status[num_sums:], began_s, summed_s)
