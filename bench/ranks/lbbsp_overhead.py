"""Ranks of bench_lbbsp_overhead.py: take emulated steps under every policy, and time what follows computing.

They are started under mpirun, one rank per worker. A step is that of a real run (`train_balanced`); only
computing is a sleep. Rank 0 prints one JSON object. For every policy and step it has the seconds from the
moment when the last worker has computed to the moment when the last one may begin the next step, and the
seconds of the whole step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcbal.dataplane.reader import Batch
from hpcbal.policies.batching import BATCHING
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu
from hpcbal.policies.batching.networks import NUM_INPUTS, Narx
from hpcbal.runtime.balance.balancer import Balancer, EvenSplit
from hpcbal.runtime.balance.decided_split import DecidedSplit
from hpcbal.runtime.balance.step import Step, WorkerWatch
from hpcbal.runtime.group.epoch import train_balanced
from hpcbal.runtime.group.feeding import Batches
from hpcbal.telemetry.host.resource_use import ResourceProbe, ResourceUse
from hpcbal.training.backend import Contribution, Sums
from hpcbal.training.collective import GradientCollective
from hpcbal.training.mpi_collective import MpiCollective

POLICIES = ("even", "fitted", "lb-bsp-gpu", "lb-bsp-cpu ema", "lb-bsp-cpu narx")
RIDING = "lb-bsp-cpu ema riding"
SAMPLES_PER_WORKER = 128
NOISE = 0.02  # of computing times
NUM_HIDDEN = 6
# Steps that are not recorded: of a policy's first turn, in which `fitted` settles, and of each later one,
# in which a probe begins.
WARM_UP = (6, 2)
COMPUTED, ENDED, STEP = range(3)

FloatArray = npt.NDArray[np.float64]


@dataclass
class SleepingReplica:
    """Computes by sleeping in proportion to its samples; a part of `hpcbal.training.backend.Replica`.

    Attributes:
        sample_s: seconds per sample.
        tensors: its gradients.
        computed_s: `time.monotonic` at the end of computing in the last step.
    """

    sample_s: float
    tensors: list[npt.NDArray[np.float32]]
    rng: np.random.Generator
    broken: None = None
    exchange: None = None
    num_states: int = 0
    computed_s: float = 0.0

    def compute(self, batch: Any, num_samples_total: int, weight: float | None = None) -> Contribution:
        time.sleep(len(batch.ids) * self.sample_s * (1.0 + NOISE * abs(self.rng.standard_normal())))
        self.computed_s = time.monotonic()
        return Contribution(self.tensors, Sums(0.0, len(batch.ids)))

    def train_alone(self, batch: Any) -> Sums:
        return self.compute(batch, len(batch.ids)).sums

    def zeros(self) -> Contribution:
        return Contribution(self.tensors, Sums())

    def apply(self, tensors: Sequence[Any]) -> None:
        """The same cost under all policies."""


class Riding(MpiCollective):
    """As with Horovod, ranks do not meet before they sum: the sum carries reports, shares follow later."""

    meets = False


class TurnProbe:
    """Watches the host during the turns of the policy that needs it; a context manager."""

    def __enter__(self) -> None:
        self._probe = ResourceProbe()

    def __exit__(self, *error: object) -> None:
        self._probe.close()

    def read(self) -> ResourceUse:
        return self._probe.read()


def random_narx(num_workers: int) -> Narx:
    """Networks without a fit; predictions with them take as long."""
    rng = np.random.default_rng(0)

    def small(*shape: int) -> npt.NDArray[np.float64]:
        return 0.01 * rng.standard_normal((num_workers, *shape))

    return Narx(
        input_mean=small(NUM_INPUTS),
        input_scale=np.ones((num_workers, NUM_INPUTS)),
        hidden_weights=small(NUM_INPUTS, NUM_HIDDEN),
        hidden_bias=small(NUM_HIDDEN),
        output_weights=small(NUM_HIDDEN),
        direct_weights=small(NUM_INPUTS),
        output_bias=np.zeros(num_workers),
        speed_mean=np.full(num_workers, 8.0),
        speed_scale=np.ones(num_workers),
    )


def make_balancer(name: str, collective: MpiCollective, num_samples: int, probe: TurnProbe) -> Balancer:
    """The balancer that a run would use; a fitted predictor has its model ready."""
    if name == "even":
        return EvenSplit(collective.size)
    policy, predictor = f"{name} ".split(" ")[:2]
    chosen, watch = BATCHING[policy], WorkerWatch()
    if predictor == "narx":
        chosen = LbBspCpu(random_narx(collective.size))
        watch = replace(watch, host=probe.read)
    return DecidedSplit(name, chosen, num_samples, collective, watch=watch)


class Numbered(Batches):
    """Batches of numbers: only how many samples a rank gets matters."""

    def __init__(self, balancer: Balancer, rank: int) -> None:
        self.balancer = balancer
        self._rank = rank

    def plan(self, pass_index: int, number: int, start: int, end: int) -> Callable[[], Step]:
        shares = self.balancer.deal(start, end)
        mine = shares.of_rank(self._rank).positions
        return lambda: Step(start, end, True, end - start, shares, Batch(mine, mine, mine))

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Nothing is waited for."""

    def step_performed(self) -> None:
        """The numbers are the same in every step."""

    def release(self, pass_index: int, step: Step) -> None:
        """There is no memory to use again."""


def take_steps(
    balancer: Balancer,
    replica: SleepingReplica,
    collective: GradientCollective,
    num_samples: int,
    num_steps: int,
) -> FloatArray:
    """Steps of a run (`train_balanced`); columns COMPUTED to STEP, shape (num_steps, 3)."""
    rows: FloatArray = np.zeros((num_steps, 3))
    batches = Numbered(balancer, collective.rank)
    network: Any = replica
    for k in range(num_steps):
        began = time.monotonic()
        step = batches.plan(0, k, 0, num_samples)()
        train_balanced(network, step, batches, collective)
        rows[k, COMPUTED], rows[k, ENDED] = replica.computed_s, time.monotonic()
        rows[k, STEP] = time.monotonic() - began
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-s", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=5, help="steps of each policy and turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--weights", type=int, default=1000)
    parser.add_argument("--riding", action="store_true", help=f"also take turns with `{RIDING}`")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    names = (*POLICIES, RIDING) if args.riding else POLICIES
    collectives = {name: Riding(comm) if name == RIDING else MpiCollective(comm) for name in names}
    probe = TurnProbe()
    num_samples = SAMPLES_PER_WORKER * comm.size
    replica = SleepingReplica(
        args.step_s / SAMPLES_PER_WORKER,
        [np.zeros(args.weights, np.float32)],
        np.random.default_rng(comm.rank),
    )
    balancers = {name: make_balancer(name, collectives[name], num_samples, probe) for name in names}
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for turn in range(args.turns):
        warm_up = WARM_UP[min(turn, 1)]
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]  # each turn begins with another policy
            balancer = balancers[name]
            with probe if name.endswith("narx") else contextlib.nullcontext():
                balancer.start()
                num_steps = warm_up + args.steps
                rows = take_steps(balancer, replica, collectives[name], num_samples, num_steps)[warm_up:]
            all_rows = comm.gather(rows)
            if all_rows is not None:
                every = np.stack(all_rows)  # (ranks, steps, 3)
                after_s = every[:, :, ENDED].max(axis=0) - every[:, :, COMPUTED].max(axis=0)
                found[name] += np.column_stack([after_s, every[:, :, STEP].max(axis=0)]).tolist()
    for balancer in balancers.values():
        balancer.close()
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
