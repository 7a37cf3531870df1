"""The 80 jobs of [PS] Table 4.1 on 100 machines, in times and bytes.

The paper gives sizes of samples and models, machines and links. It does not give times, so these are chosen:

- A worker pulls and pushes `MODEL_SHARE` of the model in an iteration, whatever the number of workers. With
  all of it, an iteration of the eight kinds of jobs would communicate for 17 minutes; in [PS] Fig. 4.19 one
  takes less than a minute.
- Computing is proportional to communicating, by `INTENSITY` of the app (NMF computes most and Lasso least,
  [PS] Fig. 4.3) and by ten hyper-parameters that span a factor of `SPREAD` ([PS] Fig. 4.9b: the ratio varies
  widely).
- One common factor is chosen so that isolated jobs compute for `ISOLATED_USE` of the time, as in [PS] Sec.
  4.4.3: 93.2 % with Harmony and 1.65 times less in isolation; the same for links, and together 1.
- Iterations until a job converges are drawn log-uniformly from a factor of `LENGTHS`, for all kinds alike.
  The computing of all jobs would fill all cores for `FULL_HOURS`: the paper's jobs run for hours, which
  says how much starts and moves weigh.
- In memory, samples and models take `MEMORY_FACTOR` of their size. In isolation, `HEADROOM` of a machine is
  left to the garbage collector of the paper's Java runtime, which [PS] Sec. 4.3.3 names as a reason to spill.
- Jobs that reload their samples ([PS] Sec. 4.3.3) keep the model in memory. Reading ahead takes no time: in
  the paper it is done while others compute.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.simulator.coscheduling.job import SharingDelays, SimulatedJob, SimulatedMachine

GB = 1e9
NUM_MACHINES = 100
MACHINE = SimulatedMachine(1.1e9 / 8)
MEMORY_BYTES = 32 * GB
MODEL_SHARE = 1 / 8
MEMORY_FACTOR = 2.0
HEADROOM = 1 / 3
SPREAD = 8.0
LENGTHS = 4.0
FULL_HOURS = 8.0
ISOLATED_USE = 0.53
INTENSITY = {"nmf": 2.0, "lda": 1.4, "mlr": 1.0, "lasso": 0.7}
DATASETS = [
    ("nmf-64x", 45.6, 1.0),
    ("nmf-128x", 91.2, 5.0),
    ("lda-pubmed", 4.3, 2.1),
    ("lda-nytimes", 0.6, 1.1),
    ("mlr-small", 78.4, 12.0),
    ("mlr-large", 155.0, 24.0),
    ("lasso-small", 78.4, 12.0),
    ("lasso-large", 155.0, 24.0),
]
"""Names, GB of samples and GB of models."""
NUM_PARAMETERS = 10
DELAYS = SharingDelays(control_s=0.002, start_s=5.0, stop_s=1.0, disk_bytes_per_s=100e6)
"""Of messages between instances of EC2, of starts, and of their disks."""

GROUPED_LIMIT = MemoryLimit(MEMORY_BYTES)
ISOLATED_LIMIT = MemoryLimit(MEMORY_BYTES * (1 - HEADROOM))


def paper_jobs(seed: int = 0) -> list[SimulatedJob]:
    """The jobs, in random order; all are submitted at the start.

    Args:
        seed: of their order and of their lengths.
    """
    rng = random.Random(seed)
    jobs = []
    for name, input_gb, model_gb in DATASETS:
        network_s = 2 * MODEL_SHARE * model_gb * GB / MACHINE.bandwidth
        for index in range(NUM_PARAMETERS):
            factor = SPREAD ** (index / (NUM_PARAMETERS - 1) - 0.5)
            jobs.append(
                SimulatedJob(
                    f"{name}-{index}",
                    INTENSITY[name.split("-")[0]] * factor * network_s,
                    1,
                    dense_bytes=MODEL_SHARE * model_gb * GB,
                    state_bytes=model_gb * GB,
                    input_bytes=input_gb * GB,
                    memory=JobMemory(MEMORY_FACTOR * input_gb * GB, MEMORY_FACTOR * model_gb * GB),
                )
            )
    rng.shuffle(jobs)
    lengths = [LENGTHS ** rng.random() for _ in jobs]
    scale = _compute_scale(jobs, lengths)
    computing_s = sum(scale * job.compute_s * length for job, length in zip(jobs, lengths, strict=True))
    iterations = FULL_HOURS * 3600 * NUM_MACHINES / computing_s
    return [
        replace(job, compute_s=scale * job.compute_s, iterations=round(iterations * length))
        for job, length in zip(jobs, lengths, strict=True)
    ]


def reloaded(jobs: Sequence[SimulatedJob]) -> list[SimulatedJob]:
    """The same jobs, with their samples on disk."""
    return [replace(job, memory=replace(job.memory, input_bytes=0.0)) for job in jobs]


def heavy_jobs(jobs: Sequence[SimulatedJob], *, computes: bool, count: int = 60) -> list[SimulatedJob]:
    """Those that compute longest, or shortest, for the time for which they communicate ([PS] Fig. 4.13)."""
    order = sorted(jobs, key=lambda job: job.compute_s / job.dense_bytes, reverse=computes)
    chosen = {job.name for job in order[:count]}
    return [job for job in jobs if job.name in chosen]


def poisson_jobs(jobs: Sequence[SimulatedJob], mean_s: float, seed: int) -> list[SimulatedJob]:
    """Jobs that arrive one after the other, at random ([PS] Fig. 4.15)."""
    rng = random.Random(seed)
    now_s, arriving = 0.0, []
    for job in jobs:
        arriving.append(replace(job, arrives_s=now_s))
        now_s += rng.expovariate(1 / mean_s)
    return arriving


def bursty_jobs(jobs: Sequence[SimulatedJob], mean_s: float, seed: int) -> list[SimulatedJob]:
    """Jobs that arrive in bursts of 1 to 15, with as many in an hour as `poisson_jobs`.

    The paper draws arrivals from Google's cluster traces, which are not here.
    """
    rng = random.Random(seed)
    now_s, left = 0.0, 0
    arriving: list[SimulatedJob] = []
    for job in jobs:
        if not left:
            left = rng.randint(1, 15)
            now_s += rng.expovariate(1 / (mean_s * left)) if arriving else 0.0
        left -= 1
        arriving.append(replace(job, arrives_s=now_s))
    return arriving


def isolated_machines(job: SimulatedJob) -> int:
    """Machines that a job has in isolation: as few as hold it."""
    least = ISOLATED_LIMIT.least_machines(job.memory, NUM_MACHINES)
    assert least is not None
    return least


def _compute_scale(jobs: Sequence[SimulatedJob], lengths: Sequence[float]) -> float:
    """The factor of all computing for which isolated jobs compute for `ISOLATED_USE` of the time."""

    def use(scale: float) -> float:
        busy = taken = 0.0
        for job, length in zip(jobs, lengths, strict=True):
            count = isolated_machines(job)
            compute_s = scale * job.compute_s / count
            pulled, _ = job.pull_bytes(count, count)
            busy += length * count * compute_s
            taken += length * count * (compute_s + 2 * pulled / MACHINE.bandwidth)
        return busy / taken

    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if use(middle) < ISOLATED_USE else (low, middle)
    return low
