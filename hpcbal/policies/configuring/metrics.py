"""Moving averages of what executors measure, and the machines and epochs that they show.

The cost model leaves out what it cannot know: in `async`, workers that come to meet at the same server again
and again; machines that others use too. So a change that was predicted to pay may not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring.cost_model import Links, Machine

WEIGHT = 0.3
"""Weight of the newest value in a moving average: about the last six values count."""
WEIGHT_OF_SPEED = 0.1
"""The same for computing, which does not depend on the configuration: about the last twenty values."""
ALIKE = 0.05
"""Machines whose values differ by at most this share count as equal."""
SURE = 3.0
"""So do those whose compute times differ by at most so many standard errors. Otherwise the search would move
samples again and again to machines that happened to be fast in the last turns."""


@dataclass(frozen=True, slots=True)
class Average:
    """An exponential moving average that starts as a plain mean.

    Attributes:
        value: 0 if there is no value yet.
        number: values so far.
        variance: of the values, averaged in the same way.
    """

    value: float = 0.0
    number: int = 0
    variance: float = 0.0

    def after(self, value: float, weight: float = WEIGHT) -> Average:
        """The average with one more value, which has at least this weight."""
        weight = max(weight, 1.0 / (self.number + 1))
        away = value - self.value
        variance = (1.0 - weight) * (self.variance + weight * away * away)
        return Average(self.value + weight * away, self.number + 1, variance)

    def error(self, weight: float = WEIGHT) -> float:
        """Standard error of the value; 0 while there is only one, whose error is not known.

        Args:
            weight: with which values were added.
        """
        effective = min(float(self.number), (2.0 - weight) / weight)
        if effective <= 1.0:
            return 0.0
        return math.sqrt(self.variance / (effective - 1.0))


@dataclass(frozen=True, slots=True)
class TurnMetrics:
    """Measurements of a worker in one turn.

    Attributes:
        samples: samples of the turn, >= 0; a turn without samples counts only for communication.
        compute_s: time of `compute`.
        communication_s: of the pull, and of the push if the worker waits for it before the next pull
            ([PS] Sec. 3.2.1 counts both).
        bytes_moved: pulled and pushed.
    """

    samples: int
    compute_s: float
    communication_s: float
    bytes_moved: float


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """Measurements of a server in one period.

    Attributes:
        bytes_moved: received and sent.
        service_s: time spent on answering and applying.
    """

    bytes_moved: float
    service_s: float


@dataclass(frozen=True, slots=True)
class ExecutorAverages:
    """Moving averages of one executor.

    Attributes:
        seconds_per_sample: as a worker, at any time of the job.
        communication_s, turn_bytes: as a worker, since the last change.
        service_s_per_byte: as a server, at any time of the job.
        fresh_turns: turns since the last change, without the warm-up.
        skipped: turns or periods of the warm-up so far.
    """

    seconds_per_sample: Average = Average()
    communication_s: Average = Average()
    turn_bytes: Average = Average()
    service_s_per_byte: Average = Average()
    fresh_turns: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Metrics:
    """Averages of all executors. The first `warm_up` values of each after a change are left out.

    Source: [PS] Sec. 3.3.1, Metric Collection, and Sec. 3.4.1, Optimizer setup.
    """

    executors: tuple[ExecutorAverages, ...]
    warm_up: int = 3

    @classmethod
    def of(cls, num_machines: int, warm_up: int = 3) -> Metrics:
        """No values yet."""
        return cls((ExecutorAverages(),) * num_machines, warm_up)

    def after_turn(self, machine: int, turn: TurnMetrics) -> Metrics:
        """The averages after a turn of a worker."""
        now = self.executors[machine]
        if now.skipped < self.warm_up:
            return self._with(machine, replace(now, skipped=now.skipped + 1))
        speed = now.seconds_per_sample
        if turn.samples > 0 and turn.compute_s > 0:
            speed = speed.after(turn.compute_s / turn.samples, WEIGHT_OF_SPEED)
        return self._with(
            machine,
            replace(
                now,
                seconds_per_sample=speed,
                communication_s=now.communication_s.after(turn.communication_s),
                turn_bytes=now.turn_bytes.after(turn.bytes_moved),
                fresh_turns=now.fresh_turns + 1,
            ),
        )

    def after_period(self, machine: int, period: ServerMetrics) -> Metrics:
        """The averages after a period of a server."""
        now = self.executors[machine]
        if now.skipped < self.warm_up:
            return self._with(machine, replace(now, skipped=now.skipped + 1))
        service = now.service_s_per_byte
        if period.bytes_moved > 0:
            service = service.after(period.service_s / period.bytes_moved)
        return self._with(machine, replace(now, service_s_per_byte=service))

    def after_change(self) -> Metrics:
        """After a change of configuration: speeds of machines stay known, all else is measured anew."""
        return replace(
            self,
            executors=tuple(
                ExecutorAverages(
                    seconds_per_sample=own.seconds_per_sample, service_s_per_byte=own.service_s_per_byte
                )
                for own in self.executors
            ),
        )

    def _with(self, machine: int, averages: ExecutorAverages) -> Metrics:
        executors = list(self.executors)
        executors[machine] = averages
        return replace(self, executors=tuple(executors))


def estimate_machines(
    metrics: Metrics,
    bandwidths: Sequence[float],
    kinds: Sequence[str | int],
    memory_bytes: Mapping[int, float] | None = None,
) -> tuple[Machine, ...]:
    """Machines from what was measured; what a machine has not shown yet is taken from others.

    An executor that has only been a server has no compute time yet. It counts as fast as the mean worker of
    its kind; if there is none, as the mean of all workers. So a first change may be wrong about such a
    machine; once it has worked, its own values count. Service times of machines that have not served yet are
    taken likewise, and are 0 if no machine has served.

    Measured values of equal machines differ. Machines whose bandwidths differ by at most 5 % (`ALIKE`), and
    whose compute times differ by at most as much or by no more than chance explains (`SURE`), get the same
    values, their means.

    Args:
        bandwidths: bytes/s of each link, given or measured.
        kinds: what each machine is, such as its node type; equal entries are assumed to be equally fast.
        memory_bytes: memory by machine; machines that are not in it have no limit.

    Raises: PolicyError: no worker has reported a compute time yet.
    Source: [PS] Sec. 3.2.2 measures C_w.proc on workers, and does not say what a server's is.
    """
    compute = [own.seconds_per_sample for own in metrics.executors]
    if not any(average.number for average in compute):
        raise PolicyError("no worker has reported a compute time yet; wait for more turns")
    compute_s = _completed(compute, kinds)
    service_s = _completed([own.service_s_per_byte for own in metrics.executors], kinds)
    limits = memory_bytes or {}
    machines = [
        Machine(compute_s[i], bandwidths[i], service_s[i], limits.get(i, float("inf")))
        for i in range(len(metrics.executors))
    ]
    return _alike(machines, [average.error(WEIGHT_OF_SPEED) for average in compute])


def _completed(averages: Sequence[Average], kinds: Sequence[str | int]) -> list[float]:
    """Values of all machines: own, the mean of the kind, or the mean of all; 0 if nobody has any."""
    known = [i for i, average in enumerate(averages) if average.number]

    def value(i: int) -> float:
        if averages[i].number:
            return averages[i].value
        similar = [j for j in known if kinds[j] == kinds[i]] or known
        return sum(averages[j].value for j in similar) / len(similar) if similar else 0.0

    return [value(i) for i in range(len(averages))]


def _alike(machines: Sequence[Machine], errors: Sequence[float]) -> tuple[Machine, ...]:
    """Give machines with nearly equal values the same ones.

    Args:
        errors: standard errors of the compute times.
    """
    order = sorted(
        range(len(machines)), key=lambda i: (machines[i].bandwidth, machines[i].seconds_per_sample, i)
    )
    groups: list[list[int]] = []
    for i in order:
        for group in groups:
            chance = SURE * math.hypot(errors[group[0]], errors[i])
            if _near(machines[group[0]], machines[i], chance):
                group.append(i)
                break
        else:
            groups.append([i])
    result = list(machines)
    for group in groups:
        members = [machines[i] for i in group]
        mean = Machine(
            sum(machine.seconds_per_sample for machine in members) / len(members),
            sum(machine.bandwidth for machine in members) / len(members),
            sum(machine.service_s_per_byte for machine in members) / len(members),
            members[0].memory_bytes,
        )
        for i in group:
            result[i] = mean
    return tuple(result)


def _near(one: Machine, other: Machine, chance: float) -> bool:
    apart = abs(one.seconds_per_sample - other.seconds_per_sample)
    longer = max(one.seconds_per_sample, other.seconds_per_sample)
    pairs = ((one.bandwidth, other.bandwidth), (_serve_s(one), _serve_s(other)))
    return (
        apart <= max(chance, ALIKE * longer)
        and all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)
        and one.memory_bytes == other.memory_bytes
    )


def _serve_s(machine: Machine) -> float:
    """Seconds per byte at its link or its processor, the slower of both."""
    return max(1.0 / machine.bandwidth, machine.service_s_per_byte)


LEAST_TURNS = 4
"""Turns of each worker after its first one, before its rate counts."""

LEAST_EPOCHS = 2
"""Whole epochs since a change, before their time counts."""


@dataclass(slots=True)
class _Pace:
    """Turns of one worker since its first one.

    Attributes:
        first_s, last_s: ends of the first and of the last turn.
        samples, turns: after the first one.
    """

    first_s: float
    last_s: float
    samples: int = 0
    turns: int = 0


class Hindsight:
    """Measures the epochs of the present configuration.

    Args:
        num_samples: of an epoch.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._ends_s: list[float] = []
        self._paces: dict[int, _Pace] = {}

    def note_turn(self, worker: int, samples: int, now_s: float) -> None:
        """A worker has ended a turn at a time of any clock, in seconds."""
        pace = self._paces.get(worker)
        if pace is None:
            self._paces[worker] = _Pace(now_s, now_s)
            return
        pace.last_s = now_s
        pace.samples += samples
        pace.turns += 1

    def note_epoch(self, now_s: float) -> None:
        """An epoch has ended."""
        self._ends_s.append(now_s)

    def restart(self) -> None:
        """The configuration has changed."""
        self._ends_s, self._paces = [], {}

    @property
    def epoch_s(self) -> float | None:
        """Mean of the whole epochs since the last change; None: there are too few."""
        whole = len(self._ends_s) - 1
        return None if whole < LEAST_EPOCHS else (self._ends_s[-1] - self._ends_s[0]) / whole

    @property
    def roughly_s(self) -> float | None:
        """The same, or, while there are too few epochs, what one takes at the rates of all workers.

        None: too few turns are known. Objectives and checkpoints do not count then.
        """
        if self.epoch_s is not None:
            return self.epoch_s
        paces = self._paces.values()
        if not paces or any(pace.turns < LEAST_TURNS or pace.last_s <= pace.first_s for pace in paces):
            return None
        rate = sum(pace.samples / (pace.last_s - pace.first_s) for pace in paces)
        return self._num_samples / rate if rate else None


LEAST_COMMUNICATION_S = 1e-7
"""A turn cannot be measured to communicate faster."""


def measured_bandwidth(
    turn_bytes: float,
    num_workers: int,
    largest_share: float,
    communication_s: float,
    compute_s: float,
    has_barrier: bool,
    links: Links = "in_turn",
) -> float:
    """Solve `epoch_cost` for the bandwidth of links, from a measured turn of equal machines.

    Args:
        turn_bytes: pulled and pushed by a worker, > 0; half each.
        num_workers: >= 1.
        largest_share: of the model, on the fullest server.
        communication_s, compute_s: of a turn, measured; >= 0.
        has_barrier: whether steps wait for each other.
        links: see `Problem`.

    Returns: bytes/s in each direction.
    """
    communication_s = max(LEAST_COMMUNICATION_S, communication_s)
    one_way = largest_share * turn_bytes / 2
    if links == "shared" and has_barrier:
        return max(turn_bytes, 2 * num_workers * one_way) / communication_s
    if links == "shared":
        if num_workers * 2 * one_way <= turn_bytes:
            return turn_bytes / communication_s
        # For x = 1/bandwidth and t seconds of a turn, c of them communicating, `on_shared_links` says
        # (c - (turn_bytes - 2 o) x) (t - (w - 1) o x) = 2 t o x.
        turn_s = communication_s + max(0.0, compute_s)
        alone, others = turn_bytes - 2 * one_way, (num_workers - 1) * one_way
        b, ac = communication_s * others + turn_s * turn_bytes, alone * others * turn_s * communication_s
        return (b + math.sqrt(max(0.0, b * b - 4 * ac))) / (2 * turn_s * communication_s)
    if has_barrier:
        return (turn_bytes + (num_workers - 1) * one_way) / communication_s
    # Servers may have been the bottleneck, or the worker's own link: neither was faster than was measured.
    served = num_workers * one_way / (communication_s + max(0.0, compute_s))
    return max(turn_bytes / communication_s, served)
