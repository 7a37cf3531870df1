"""Ranks of bench_chronica.py: take steps on samples of unequal size, and time what is not computing.

They are started under mpirun, one rank per worker. Stream, feeder with its fetching thread, balancer, dealer,
collective and step are those of a run; only computing is a sleep, in proportion to the rank's work. The ways
to deal take short turns. Rank 0 prints one JSON object. For every way it has one row per step: the seconds of
the whole step; the seconds from the moment when the last rank has computed to the moment when the last one
begins to compute the next step; the CPU seconds of the thread that fetches the step, on the rank that took
longest; and those of the master's thread that decides on speeds, the mean of the turn.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI
from ranks.lbbsp_overhead import SleepingReplica

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.private import PrivateStream
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.batching import Decision, Observation
from hpcbal.policies.batching.fitted import Fitted, FittedState
from hpcbal.policies.orders import sample_order
from hpcbal.policies.partitioning import deal_parts
from hpcbal.policies.samples.drawing import generated_sizes
from hpcbal.runtime.balance.balancer import Balancer, EvenSplit
from hpcbal.runtime.balance.dealing import Dealer
from hpcbal.runtime.balance.decided_split import DecidedSplit
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.epoch import train_balanced
from hpcbal.runtime.group.feeding import Batches, Feeder, StreamBatches
from hpcbal.runtime.parts.chronica import ChronicaBatches, ChronicaParts
from hpcbal.training.backend import Contribution, Sums
from hpcbal.training.collective import GradientCollective
from hpcbal.training.mpi_collective import MpiCollective
from hpcbal.values import Position

WAYS = ("in-order", "within-batch sum", "within-batch padded", "chronica")
"""How samples are dealt. `in-order` with even shares decides, measures and reports nothing."""
SAMPLES_PER_WORKER = 8
DIF = 64.0
NOISE = 0.02  # of computing times
WARM_UP = (8, 2)
"""Steps that are not recorded: of the first turn, in which `fitted` settles, and of each later one."""
STEP, BETWEEN, FETCHING, DECIDING = range(4)

FloatArray = npt.NDArray[np.float64]


class WorkingReplica(SleepingReplica):
    """Computes by sleeping in proportion to its work.

    Attributes:
        began_s: `time.monotonic` at the beginning of computing in the last step.
    """

    began_s = 0.0

    def compute(self, batch: Any, num_samples_total: int, weight: float | None = None) -> Contribution:
        self.began_s = time.monotonic()
        time.sleep(batch.work * self.sample_s * (1.0 + NOISE * abs(self.rng.standard_normal())))
        self.computed_s = time.monotonic()
        return Contribution(self.tensors, Sums(0.0, len(batch.ids)))


class TimedFitted(Fitted):
    """Counts the CPU seconds of its decisions.

    Attributes:
        decided_s: of all decisions since it was last cleared.
    """

    decided_s: ClassVar[list[float]] = []

    def decide(self, state: FittedState, observations: Sequence[Observation]) -> Decision[FittedState]:
        began = time.thread_time()
        decision = Fitted.decide(self, state, observations)
        self.decided_s.append(time.thread_time() - began)
        return decision


class SizedNumbers:
    """A source of short arrays; what matters is how large they are said to be."""

    mixes = False

    def __init__(self, num_samples: int) -> None:
        self.train_ids = np.arange(num_samples)
        self.sizes = generated_sizes(num_samples, DIF, seed=0)
        self._array, self._label = np.zeros(8, np.float32), np.array(0)

    def ids_of_pass(self, pass_index: int) -> npt.NDArray[np.int64]:
        return sample_order(len(self.sizes), 0, pass_index)

    def sample(
        self, sample_id: int, moment: int, training: bool
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self._array[: 1 + sample_id % 8], self._label

    def sizes_of(self, ids: npt.NDArray[np.int64], samples: object) -> FloatArray:
        return self.sizes[ids]


@dataclass
class NoPieces:
    """Nothing travels between parts within one pass."""

    rank: int

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Way:
    """One way of dealing, with everything that a rank needs for it; its pass goes on from turn to turn."""

    name: str
    source: SizedNumbers
    collective: GradientCollective
    batch_size: int

    def __post_init__(self) -> None:
        self.fetching_s: list[float] = []
        self.balancer = self._make_balancer()
        sample = SampleSpec.of((None,), "float32", 32)
        count = len(self.source.sizes)
        block_samples = self.batch_size  # the fetching thread also makes one block in each step
        spec = StreamSpec(count, count, block_samples, sample, LabelSpec(), 2**20, is_sized=True)
        self.batches = self._make_batches(spec)
        plan = self.batches.plan
        setattr(self.batches, "plan", lambda *step: self._timed(plan(*step)))  # noqa: B010
        self._executor = ThreadPoolExecutor(1, "fetch")
        feeder = Feeder(spec, self.batches, self.batch_size, self._executor, poll=lambda: None)
        self.steps = feeder.steps(0, 0)

    def _make_balancer(self) -> Balancer:
        if self.name == "in-order":
            return EvenSplit(self.collective.size)
        return DecidedSplit(self.name, TimedFitted(), self.batch_size, self.collective, deals_work=True)

    def _make_batches(self, spec: StreamSpec) -> Batches:
        samples, _, cost = self.name.partition(" ")
        settings = BalanceConfig.model_validate({"samples": samples, "cost": cost or "sum"})
        dealer = None if self.name == "in-order" else Dealer(settings, float(self.source.sizes.mean()))
        rank = self.collective.rank
        if samples != "chronica":
            stream = PrivateStream(spec, self.source, self.batch_size)
            stream.open(Position(0))
            return StreamBatches(spec, stream, self.batch_size, rank, self.balancer, dealer)
        sizes, no_samples = self.source.sizes, np.zeros(0, np.bool_)
        pieces: Any = NoPieces(rank)
        parts = ChronicaParts(
            pieces,
            None,
            self.source.train_ids,
            deal_parts(len(sizes), self.collective.size, "random", 0),
            None,
            0,
            lambda: None,
            sizes=sizes,
            weights=lambda: self.balancer.weights,
            steps_per_pass=len(sizes) // self.batch_size,
        )
        rest: Any = (self.source, parts, self.balancer, self.batch_size, 0, no_samples, 0, [])
        return ChronicaBatches(spec, *rest, sizes=sizes, dealer=dealer)

    def _timed(self, fetch: Callable[[], Step]) -> Callable[[], Step]:
        def timed() -> Step:
            began = time.thread_time()
            step = fetch()
            self.fetching_s.append(time.thread_time() - began)
            return step

        return timed

    def close(self) -> None:
        self.steps.close()
        self.balancer.close()
        self._executor.shutdown()


def take_steps(way: Way, replica: WorkingReplica, num_steps: int) -> FloatArray:
    """Take steps as a run does (`train_balanced`).

    Returns: begin and end of computing, and the CPU seconds of fetching, shape (num_steps, 3).
    """
    rows: FloatArray = np.zeros((num_steps, 3))
    network: Any = replica
    for k in range(num_steps):
        step = next(way.steps)
        fetched_s = way.fetching_s[step.start // way.batch_size]
        train_balanced(network, step, way.batches, way.collective)
        rows[k] = replica.began_s, replica.computed_s, fetched_s
    return rows


def figures_of_turn(every: FloatArray, decided_s: float) -> FloatArray:
    """STEP to DECIDING of each step but the last, from the rows of all ranks, (num_ranks, num_steps, 3)."""
    began_s, computed_s, fetched_s = every.max(axis=0).T
    found = np.full((len(began_s) - 1, 4), decided_s)
    found[:, STEP] = np.diff(began_s)
    found[:, BETWEEN] = began_s[1:] - computed_s[:-1]
    found[:, FETCHING] = fetched_s[1:]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=6, help="steps of each way and turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--weights", type=int, default=1000)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    batch_size = SAMPLES_PER_WORKER * comm.size
    source = SizedNumbers(batch_size * (sum(WARM_UP) + args.turns * (args.steps + WARM_UP[1] + 2)))
    random = np.random.default_rng(comm.rank)
    tensors = [np.zeros(args.weights, np.float32)]
    replica = WorkingReplica(args.step_s / SAMPLES_PER_WORKER, tensors, random)
    ways = [Way(name, source, MpiCollective(comm), batch_size) for name in WAYS]
    for way in ways:
        way.balancer.start()
    found: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for turn in range(args.turns):
        for i in range(len(ways)):
            way = ways[(turn + i) % len(ways)]  # each turn begins with another way
            take_steps(way, replica, WARM_UP[min(turn, 1)])
            TimedFitted.decided_s.clear()
            rows = take_steps(way, replica, args.steps + 1)
            decided_s = sum(TimedFitted.decided_s) / len(rows)
            all_rows = comm.gather(rows)
            if all_rows is not None:
                found[way.name] += figures_of_turn(np.stack(all_rows), decided_s).tolist()
    for way in ways:
        way.close()
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
