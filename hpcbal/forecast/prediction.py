"""Throughput for numbers of workers and servers, what limits it, and which machines are worth their price."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import PolicyError
from hpcbal.forecast.cluster import Links, Topology
from hpcbal.forecast.overhead import NO_PARSING, ParsingOverhead, separate_parsing
from hpcbal.forecast.simulation import ReplayResult, Settings, Stop, simulate
from hpcbal.forecast.trace import Resource, Trace

NUM_REPEATS = 8
_QUANTILE = 1.895
"""Student's t with NUM_REPEATS - 1 degrees of freedom exceeds it in 5 % of cases."""

WARM_UP = 50
"""Steps of each worker that are left out ([ASGD] Sec. 4.1); of short runs at most a fifth."""

LEAST_STEPS = 20
"""Fewest steps of a short run."""

STEPS_ALONE = 50
"""Steps of one worker, within whose mean step all workers start."""

STEPS_FOR_OVERHEAD = 400
"""Steps of one worker, so that its mean step is known well."""

_MOST = (math.inf, math.inf, 1.0, 1.0, 1.0, 1.0)
"""Bounds of `figures_of`."""

NEARLY = 0.8
LEAST_GAIN = 0.02
"""A part that brings less when it is twice as fast limits nothing."""


class Limit(enum.StrEnum):
    """A part that may hold up a job."""

    DOWNLINK = "downlink"
    UPLINK = "uplink"
    LINKS = "links"
    """Both directions."""
    COMPUTING = "computing"
    UPDATES = "updates"
    PARSING = "parsing"


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job to simulate.

    Attributes:
        trace: without parsing, on as many servers as the cluster has.
    """

    trace: Trace
    cluster: Topology
    parsing: ParsingOverhead = NO_PARSING
    settings: Settings = field(default_factory=Settings)

    def run(self, stop: Stop | None = None) -> ReplayResult:
        """Simulate it; see `simulate`."""
        trace = separate_parsing(self.trace, self.parsing)
        return simulate(trace, self.cluster, self.settings, stop=stop)

    def with_steps(self, num_steps: int, seed: int) -> TracedJob:
        """The same job for another number of steps, drawn anew."""
        return replace(self, settings=replace(self.settings, num_steps=num_steps, seed=seed))

    def twice_as_fast(self, limit: Limit) -> TracedJob:
        """The same job with one part that is twice as fast."""
        match limit:
            case Limit.PARSING:
                halved = ParsingOverhead(self.parsing.s_per_byte / 2, self.parsing.s_per_transfer / 2)
                return replace(self, parsing=halved)
            case Limit.COMPUTING | Limit.UPDATES:
                resource = Resource.WORKER if limit is Limit.COMPUTING else Resource.SERVER
                is_it = np.array([each.resource is resource for each in self.trace.operations])
                durations = np.where(is_it, self.trace.durations_s / 2, self.trace.durations_s)
                return replace(self, trace=replace(self.trace, durations_s=durations))
        down = 1.0 if limit is Limit.UPLINK else 2.0
        up = 1.0 if limit is Limit.DOWNLINK else 2.0

        def wider(links: tuple[Links, ...]) -> tuple[Links, ...]:
            return tuple(
                Links(each.down_bytes_per_s * down, each.up_bytes_per_s * up, each.slowness) for each in links
            )

        return replace(self, cluster=Topology(wider(self.cluster.workers), wider(self.cluster.servers)))

    def drawn_anew(self, rng: np.random.Generator, latest_s: float) -> TracedJob:
        """The same job with as many recorded steps, drawn with replacement, and with workers that start at
        random within `latest_s`."""
        rows = rng.integers(self.trace.num_steps, size=self.trace.num_steps)
        orders = self.trace.downlink_orders
        trace = replace(
            self.trace,
            durations_s=self.trace.durations_s[rows],
            downlink_orders=None if orders is None else orders[rows],
        )
        begins_s = rng.uniform(0.0, latest_s, len(self.cluster.workers))
        begins = tuple((begins_s - begins_s.min()).tolist())
        return replace(self, trace=trace, settings=replace(self.settings, begins_s=begins))


@dataclass(frozen=True, slots=True)
class Band:
    """A value, and the range in which nine of ten runs are expected; see `predict`."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Band:
        """All three, times a factor >= 0."""
        return Band(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row of a forecast.

    Attributes:
        samples_per_s: of all workers together.
        step_s: mean over the workers.
        communicating: share of a step in which the worker sends or receives something.
        exposed: share of a step in which it does so and computes nothing.
        downlink_use, uplink_use: bytes that went over the busiest server's link, over those that could.
        limit: the part that brings most when it is twice as fast; None if none brings 2 %.
        gains: by how much the throughput rises then, as a share, by part.
    """

    num_workers: int
    num_servers: int
    samples_per_s: Band
    step_s: Band
    communicating: Band
    exposed: Band
    downlink_use: Band
    uplink_use: Band
    limit: Limit | None
    gains: dict[Limit, float]


def predict(job: TracedJob, *, with_limit: bool = True, stop: Stop | None = None) -> Prediction:
    """Simulate a job several times, and with each part twice as fast for the limit.

    A value is the mean of NUM_REPEATS simulations, and the band is Student's prediction interval for one more
    of them. Each has a quarter of the steps (LEAST_STEPS at least), another seed, workers that start at
    random within a step of one, and steps that are drawn from as many recorded steps, drawn with replacement.
    So the band holds what runs vary by, and what would be different had other steps been recorded; not what
    is wrong with the model.

    Args:
        with_limit: whether to look for the limit.
        stop: ends it early, from another thread.

    Raises:
        As `simulate`.

    Source: [ASGD] Sec. 4.1 for the warm-up, Fig. 15 for starts that matter. Deviation: the paper simulates
    one run, in which all workers start together.
    """
    num_steps, seed = job.settings.num_steps, job.settings.seed
    num_short = max(LEAST_STEPS, num_steps // 4)
    alone = replace(job, cluster=Topology(job.cluster.workers[:1], job.cluster.servers))
    alone = alone.with_steps(STEPS_ALONE, seed)
    alone_s = float(figures_of(alone, alone.run(stop))[1])
    rng = np.random.default_rng([seed, 1])
    repeats = []
    for repeat in range(NUM_REPEATS):
        again = job.with_steps(num_short, seed + repeat).drawn_anew(rng, alone_s)
        repeats.append(figures_of(again, again.run(stop)))
    margins = _QUANTILE * math.sqrt(1 + 1 / NUM_REPEATS) * np.std(repeats, axis=0, ddof=1)
    means = np.mean(repeats, axis=0)
    means[1] = len(job.cluster.workers) * job.trace.samples_per_step / means[0]
    samples_per_s, step_s, communicating, exposed, downlink_use, uplink_use = (
        Band(value, max(value - margin, 0.0), min(value + margin, most))
        for value, margin, most in zip(means.tolist(), margins.tolist(), _MOST, strict=True)
    )
    gains = _gains(job, stop) if with_limit else {}
    best = limit_of(gains)
    return Prediction(
        len(job.cluster.workers),
        len(job.cluster.servers),
        samples_per_s,
        step_s,
        communicating,
        exposed,
        downlink_use,
        uplink_use,
        best,
        gains,
    )


def step_overhead(job: TracedJob, samples_per_s: float) -> float:
    """Return the seconds of a worker's step beside the simulated ones; negative if those are more.

    Args:
        job: of the recorded worker alone.
        samples_per_s: that this worker has reached without recording, > 0.

    Raises:
        PolicyError: `samples_per_s` is out of its range.
    """
    if not 0.0 < samples_per_s < math.inf:
        raise PolicyError(f"samples per second: got {samples_per_s}; they must be above 0 and finite")
    num_steps = min(job.settings.num_steps, STEPS_FOR_OVERHEAD)
    simulated = figures_of(job, job.with_steps(num_steps, job.settings.seed).run())[1]
    return job.trace.samples_per_step / samples_per_s - float(simulated)


def limit_of(gains: dict[Limit, float]) -> Limit | None:
    """The part that brings most; None if none brings LEAST_GAIN.

    One direction of the links is named if it brings nearly as much as both.
    """
    single = max(gains.get(Limit.DOWNLINK, 0.0), gains.get(Limit.UPLINK, 0.0))
    both = gains.get(Limit.LINKS, 0.0)
    left_out = (Limit.LINKS,) if single >= NEARLY * both else (Limit.DOWNLINK, Limit.UPLINK)
    possible = [limit for limit, gain in gains.items() if limit not in left_out and gain >= LEAST_GAIN]
    return max(possible, key=lambda limit: gains[limit], default=None)


def figures_of(job: TracedJob, replay: ReplayResult) -> NDArray[np.float64]:
    """Samples per second, seconds per step, and the shares of a prediction, in its order."""
    num_workers = len(job.cluster.workers)
    fewest = min(ends.size for ends in replay.ends_s)
    steps_per_s = replay.steps_per_s(min(WARM_UP, fewest // 5))
    total_s = float((replay.end_s - replay.begins_s).sum())
    possible = replay.end_s * np.array(
        [
            [server.down_bytes_per_s for server in job.cluster.servers],
            [server.up_bytes_per_s for server in job.cluster.servers],
        ]
    )
    return np.array(
        [
            steps_per_s * job.trace.samples_per_step,
            num_workers / steps_per_s,
            replay.communicating_s.sum() / total_s,
            replay.exposed_s.sum() / total_s,
            *(replay.bytes_moved / possible).max(axis=1),
        ]
    )


def _gains(job: TracedJob, stop: Stop | None) -> dict[Limit, float]:
    short = job.with_steps(max(LEAST_STEPS, job.settings.num_steps // 8), job.settings.seed)
    base = figures_of(short, short.run(stop))[0]
    gains = {}
    for limit in Limit:
        if limit is Limit.PARSING and job.parsing == NO_PARSING:
            continue
        faster = short.twice_as_fast(limit)
        gains[limit] = float(figures_of(faster, faster.run(stop))[0] / base) - 1.0
    return gains


WORTH = 0.5
"""Another worker pays if it adds at least this share of what a worker alone does."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The costs of a worker and of a server, > 0; in ranks both cost 1."""

    worker: float = 1.0
    server: float = 1.0

    def of(self, prediction: Prediction) -> float:
        """The cost of all machines."""
        return prediction.num_workers * self.worker + prediction.num_servers * self.server


def knee(rows: Sequence[Prediction], alone: float) -> int | None:
    """The number of workers after which more no longer pay.

    That is the smallest number from which no larger one adds, for each added worker, at least half of what a
    worker alone does.

    Args:
        rows: with the same number of servers, with ascending numbers of workers.
        alone: samples per second of one worker, > 0.

    Returns: None if more workers pay up to the last row, or if there is only one.
    """
    for index, row in enumerate(rows[:-1]):
        added = (
            (more.samples_per_s.value - row.samples_per_s.value) / (more.num_workers - row.num_workers)
            for more in rows[index + 1 :]
        )
        if max(added) < WORTH * alone:
            return row.num_workers
    return None


def cheapest(rows: Sequence[Prediction], wanted: float, prices: Prices) -> Prediction | None:
    """The cheapest row that reaches a throughput; the faster one of two with the same cost.

    Args:
        wanted: samples per second.

    Returns: None if no row reaches it.
    """
    enough = [row for row in rows if row.samples_per_s.value >= wanted]
    return min(enough, key=lambda row: (prices.of(row), -row.samples_per_s.value), default=None)
