"""Keep shares safe: from wrong predictions, full memory, and workers that only hold others up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.min_max import apportion, split_min_max
from hpcbal.policies.batching.task import LEAST_FREE_MEMORY_SHARE, BatchTask, Observation
from hpcbal.policies.batching.time_curves import FloatArray, TimeCurves

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GuardState:
    """The memory of a guard about one group.

    Attributes:
        even: the even split.
        wanted: the split that the policy requested last.
        credit: what uneven splits may still cost, in even steps; below 0 they have cost too much.
        even_s: average of lower bounds of the seconds that an even step takes; 0 before the first step.
        recent: the splits that the policy requested recently, newest last.
    """

    even: Sizes
    wanted: Sizes
    credit: float
    even_s: float = 0.0
    recent: tuple[Sizes, ...] = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """Limits what a policy may lose compared with even shares, whatever the workers do.

    A policy that relies on the past loses if the past says nothing about the next step: if speeds reverse, or
    if bursts of other load move on as soon as the policy has reacted. The guard keeps an account in even
    steps, the unit being the time of a step with even shares. After each step it estimates from the measured
    times what the even split would have taken, and books the difference. Each step also earns `rate`.

    If the largest ratio of a worker's share to its even share is 1 + r, a step takes at most 1 + r times as
    long as an even one: at worst that worker is the slowest now. The policy's split is used unchanged while
    the account covers `horizon` such steps; otherwise the guard moves it towards the even split until the
    account covers it. So few steps are lost before the account is empty, and then splits are even. Gains by
    balancing fill the account again, up to what the current split may need, so old gains cannot be gambled
    away. While the account limits the policy, its recent splits are evaluated on the times of each step, and
    part of what they would have gained is credited. All recent splits count, because the delay of a decision
    is unknown.

    Estimates: if a worker's number of samples changes, its time lies between the same time and one in
    proportion, provided that times grow with the batch and the time per sample does not. The estimate starts
    at the end of this range that is worse for the policy, and moves by `doubt` towards what the curves say.

    Guarantee: suppose that times grow with the batch, that the time per sample does not, that estimates of
    the even step are not too high, and that decisions act at most d steps later. Then n steps take at most as
    long as n even steps, plus `rate` * n, plus max(1, d / horizon) * `first_credit` + what balancing had
    gained before (counted only as far as the split needs it). With the defaults and d = 4, that is 5 % of 400
    steps. Curves are not known exactly, so tests check the factor 1.05: reversals in every step, bursts of 2
    to 100 steps, and spikes.

    Attributes:
        first_credit: even steps that the account holds at the start, > 0. With 8 a worker may get 5 times
            its even share at once.
        horizon: steps that the account must cover, > 0.
        rate: even steps that each step earns, >= 0: the loss that is allowed in the long run.
        doubt: weight of the curves in an estimate, 0..1; 0: only the sure bound counts.
        virtual: part of the gain missed by limiting the policy that is credited, 0..1.
        num_recent: number of recent splits that are evaluated for that, >= 1.
        memory: weight of the newest step in the average time of an even step, 0..1, not 0.

    Raises: PolicyError: a setting is out of range.
    Source: ours. [LBBSP] does not fall back.
    """

    first_credit: float = 8.0
    horizon: float = 2.0
    rate: float = 0.01
    doubt: float = 0.25
    virtual: float = 0.5
    num_recent: int = 4
    memory: float = 0.05

    def __post_init__(self) -> None:
        settings = (self.first_credit, self.horizon, self.rate, self.doubt, self.virtual, self.memory)
        positive = min(self.first_credit, self.horizon, self.memory) > 0 and self.num_recent >= 1
        shares = max(self.doubt, self.virtual, self.memory) <= 1 and min(self.doubt, self.virtual) >= 0
        if not (all(map(math.isfinite, settings)) and positive and shares and self.rate >= 0):
            raise PolicyError(
                f"guard: got {self}, allowed: first_credit, horizon and num_recent above 0, rate 0 or more, "
                "doubt and virtual 0 to 1, memory above 0 and at most 1"
            )

    def start(self, even: Sizes) -> GuardState:
        """The state before the first step, which is even."""
        return GuardState(even, even, self.first_credit)

    def admit(
        self,
        state: GuardState,
        observations: Sequence[Observation],
        wanted: Sizes,
        curves: TimeCurves | None = None,
    ) -> tuple[GuardState, Sizes]:
        """The split of the next step, and the state after this one.

        Args:
            state: of the last decision.
            observations: of one step that has ended, with any split; one per worker.
            wanted: the split that the policy requests.
            curves: the workers' curves as the policy knows them; None: times are in proportion to samples.

        Returns: the new state, and a split between the even and the wanted one, with the same sum.
        """
        even = np.array(state.even, np.float64)
        credit, even_s = self._account(state, even, observations, curves)
        excess = _excess(even, wanted)
        need = self.horizon * excess
        credit = max(-self.first_credit, min(credit, max(self.first_credit, need + 1.0)))
        recent = (*state.recent, wanted)[-self.num_recent :]
        after = GuardState(state.even, wanted, credit, even_s, recent)
        if credit >= max(need, 0.0):
            return after, wanted
        return after, _mixed(state.even, wanted, max(credit, 0.0) / need if need > 0 else 0.0)

    def _account(
        self,
        state: GuardState,
        even: FloatArray,
        observations: Sequence[Observation],
        curves: TimeCurves | None,
    ) -> tuple[float, float]:
        """The credit after a step, and the average time of an even one."""
        sizes = np.array([seen.work for seen in observations], np.float64)
        times_s = np.array([seen.processing_s for seen in observations], np.float64)
        part = float(sizes.sum()) / float(even.sum())  # per full step: the last step of a pass is shorter
        if not part:
            return state.credit, state.even_s
        at_least_s, even_now_s = self._estimates(times_s, sizes, even * part, curves, slower=False)
        even_s = at_least_s / part
        if state.even_s:
            even_s = state.even_s + self.memory * (even_s - state.even_s)
        one_s = max(part * even_s, 1e-300)
        credit = state.credit + self.rate + min((even_now_s - float(times_s.max())) / one_s, 1.0)
        if state.recent and credit < self.horizon * _excess(even, state.wanted):
            would_s = [
                self._estimates(times_s, sizes, np.array(split, np.float64) * part, curves, slower=True)[1]
                for split in state.recent
            ]
            gained = (even_now_s - float(np.mean(would_s))) / one_s
            credit += self.virtual * min(max(gained, 0.0), 1.0)
        return credit, even_s

    def _estimates(
        self,
        times_s: FloatArray,
        sizes: FloatArray,
        others: FloatArray,
        curves: TimeCurves | None,
        *,
        slower: bool,
    ) -> tuple[float, float]:
        """A sure bound (an upper one if `slower`) and an estimate of the step's time with the split `others`.

        Workers without samples are skipped: their times are unknown.
        """
        ratio = others / np.maximum(sizes, 1e-300)
        lows, highs = times_s * np.minimum(ratio, 1.0), times_s * np.maximum(ratio, 1.0)
        if curves is not None and (curves.slope_s > 0).all():
            growth = curves.seconds(others) / np.maximum(curves.seconds(sizes), 1e-300)
            expected = np.clip(times_s * growth, lows, highs)
        else:
            expected = times_s * ratio
        bounds = highs if slower else lows
        seen = sizes > 0
        estimates = bounds + self.doubt * (expected - bounds)
        return float(bounds[seen].max()), float(estimates[seen].max())


def _excess(even: FloatArray, split: Sizes) -> float:
    """How much longer a step with this split may take than an even one, as a share of the even one."""
    return float((np.array(split) / np.maximum(even, 1.0)).max()) - 1.0


def _mixed(even: Sizes, wanted: Sizes, share: float) -> Sizes:
    """The split at `share` of the way from the even to the wanted one, for each worker between both."""
    weights = [low + share * (high - low) for low, high in zip(even, wanted, strict=True)]
    return apportion(sum(even), weights, list(map(min, even, wanted)), list(map(max, even, wanted)))


Counts = tuple[int, ...]


def largest_so_far(largest: Counts, observations: Sequence[Observation]) -> Counts:
    """The most samples that each worker has processed, the newest iteration included."""
    return tuple(max(most, seen.num_samples) for most, seen in zip(largest, observations, strict=True))


def most_in_memory(seen: Observation, largest: int, most: int) -> int:
    """The largest batch that a worker may get next, at most `most`.

    Observations contain the most memory needed since the group began to train this DNN. It is attributed to
    the largest batch so far, and that batch stays allowed. A larger batch may fill 95 %, assuming that all
    memory in use grows with the batch. If part of it does not grow (weights, optimizer), this is too strict,
    so one sample more is always allowed while 5 % are free. Its effect is seen before the next one.

    Args:
        largest: samples of the worker's largest batch so far, >= 0.
        most: limit without regard to memory, >= 0; returned if memory is not measured.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper only decides who gets no more samples.
    """
    used = seen.device_memory_share
    if not used:
        return most
    if seen.memory_is_full:
        return min(most, largest)
    return int(min(most, max(largest * (1.0 - LEAST_FREE_MEMORY_SHARE) / used, largest + 1)))


def surely_in_memory(seen: Observation, largest: int, most: int) -> int:
    """The largest batch, at most `most`, that fits whatever part of the memory in use is fixed.

    If `used` belongs to the largest batch so far, a sample takes at most `used / largest`: exactly that if no
    part is fixed. By this estimate a batch may fill up to 95 %. If it is only one sample larger, it may fill
    all memory, because the effect of that sample is seen before the next one. `most_in_memory` is bolder: it
    allows one sample more without knowing what it takes.

    Args:
        largest: samples of the worker's largest batch so far, >= 0.
        most: limit without regard to memory, >= 0; returned if memory is not measured.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper limits which workers grow, not by how much.
    """
    used = seen.device_memory_share
    if not used:
        return most
    if seen.memory_is_full:
        return min(most, largest)
    one_more = largest + (used * (largest + 1) <= largest)
    return int(min(most, max(largest * (1.0 - LEAST_FREE_MEMORY_SHARE) / used, one_more)))


def can_leave(
    leavers: Sequence[int], task: BatchTask, observations: Sequence[Observation], largest: Counts
) -> bool:
    """Whether workers can leave in this order, so that after each one the others can hold even shares.

    A smaller group starts with even shares and with nothing learnt about memory, so memory is checked before.
    If memory is not measured, only the limits count.

    Args:
        leavers: indices of the workers that leave one after the other.
        task, observations: of the group as it is.
        largest: samples of each worker's largest batch so far, >= 0.

    Returns: False also if no worker would be left.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper removes a straggler without regard to the others' memory.
    """
    rooms = rooms_of(task, observations, largest)
    for worker in leavers:
        del rooms[worker]
        if not rooms or min(rooms.values()) < -(-task.num_samples // len(rooms)):
            return False
    return True


def rooms_of(task: BatchTask, observations: Sequence[Observation], largest: Counts) -> dict[int, int]:
    """The largest batch that each worker may get, by limits and memory, see `most_in_memory`."""
    several = zip(observations, largest, task.maxima, strict=True)
    return {i: most_in_memory(seen, most, limit) for i, (seen, most, limit) in enumerate(several)}


def hopeless_worker(
    curves: TimeCurves,
    batch_sizes: Sequence[int],
    task: BatchTask,
    reachable: BatchTask,
    observations: Sequence[Observation],
    largest: tuple[int, ...],
    least_gain: float,
    before: int | None,
) -> int | None:
    """A worker that holds up the others even with its smallest share, if they are faster without it.

    Several equally slow workers shield each other, because leaving one of them out gains nothing. So they are
    judged together and offered one after the other; the worker that was offered before is offered again.
    After each removal the remaining workers must be able to hold even shares, so after the first one the
    workers with the least room are removed first.

    Args:
        curves: expected times of the workers.
        batch_sizes: the best split for all workers.
        task: of the group, with its original limits.
        reachable: the same task, limited to what is allowed in the next iteration.
        observations: of the last iteration.
        largest: samples of each worker's largest batch so far, >= 0.
        least_gain: share of the makespan that leaving workers out must save, 0..1.
        before: the worker that the last decision found, or None.

    Returns: index of the worker; None if there is none, or if the others may lack memory.
    Source: [LBBSP] Sec. 3.3.2, Alg. 2, line 5, and the text before it. Deviation: the paper removes a worker
        whose batch would fall below 0.
    """
    times_s = curves.seconds(batch_sizes)
    wanted_s = (1.0 - least_gain) * float(times_s.max())
    slow = np.flatnonzero(times_s > wanted_s)
    rest = np.flatnonzero(times_s <= wanted_s)
    if any(batch_sizes[i] > max(reachable.minima[i], 1) for i in slow) or not len(rest):
        return None
    limits = tuple(reachable.limits[i] for i in rest)
    if sum(reachable.maxima[i] for i in rest) < task.num_samples:
        return None
    faster = TimeCurves(curves.floor_s[rest], curves.launch_s[rest], curves.slope_s[rest])
    if faster.makespan(split_min_max(faster, BatchTask(task.num_samples, limits))) >= wanted_s:
        return None
    rooms = rooms_of(task, observations, largest)
    least_room_first = sorted(slow.tolist(), key=rooms.__getitem__)
    for first in sorted(slow.tolist(), key=lambda i: (i != before, -times_s[i])):
        order = [first, *(i for i in least_room_first if i != first)]
        if can_leave(order, task, observations, largest):
            return int(first)
    return None
