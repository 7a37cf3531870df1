"""Synthetic resource traces of shared workers as in [LBBSP] Sec. 5.3: tasks come and go on 32 machines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# [LBBSP] Table 2: cores and number of each kind of machine.
MACHINES = ((8, 17), (8, 10), (8, 2), (16, 2), (4, 1))
SAMPLES_PER_S_PER_CORE = (5.0, 7.0, 5.2, 5.0, 5.0)
TICKS = 8  # per iteration: tasks start and end within iterations
MEAN_TASKS = 3.0  # at the same time on a machine
# Durations of tasks in iterations of some seconds: many short ones and a few long ones, as in Google's trace.
SHORT_TASK, LONG_TASK, LONG_SHARE = 8.0, 200.0, 0.15
# Full speed needs this share of free memory ([LBBSP] Fig. 2: with less, pages are swapped).
NEEDED_MEMORY = 0.15
LEAST_SHARE = 0.2  # of the cores: the kernel is fair, however many tasks there are
SPIKE_SHARE = 0.04  # share of iterations in which something else delays a worker
NOISE = 0.03
MEASURING_NOISE = 0.01


@dataclass(frozen=True)
class Traces:
    """The state of every worker in every iteration, independent of its batch; shapes (num_workers, n).

    Attributes:
        speeds: samples/s in iteration k.
        cpu, memory: shares that are free when iteration k begins, as measured.
    """

    speeds: FloatArray
    cpu: FloatArray
    memory: FloatArray


def make_traces(num_workers: int, num_iterations: int, seed: int) -> Traces:
    """Traces for machines in the proportions of Table 2."""
    rng = np.random.default_rng((seed, 3))
    kinds = np.repeat(np.arange(len(MACHINES)), [number for _, number in MACHINES])
    kinds = kinds[np.arange(num_workers) * len(kinds) // num_workers]
    rows = [_worker(int(kind), num_iterations, rng) for kind in kinds]
    return Traces(*(np.stack(parts) for parts in zip(*rows, strict=True)))


def _worker(
    kind: int, num_iterations: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    cores = MACHINES[kind][0]
    used = np.zeros((2, num_iterations * TICKS))  # CPU and memory, as shares of the machine
    load = rng.uniform(0.5, 1.5)  # some machines are busier than others
    mean_ticks = TICKS * (LONG_SHARE * LONG_TASK + (1 - LONG_SHARE) * SHORT_TASK)
    warm_up = int(5 * LONG_TASK * TICKS)
    num_tasks = rng.poisson(MEAN_TASKS * load * (used.shape[1] + warm_up) / mean_ticks)
    starts = rng.integers(-warm_up, used.shape[1], num_tasks)
    long = rng.random(num_tasks) < LONG_SHARE
    ticks = np.ceil(TICKS * rng.exponential(np.where(long, LONG_TASK, SHORT_TASK))).astype(np.int64)
    demands = np.stack([rng.lognormal(-2.0, 0.8, num_tasks), rng.lognormal(-2.2, 0.9, num_tasks)])
    for start, length, demand in zip(starts, ticks, demands.T, strict=True):
        used[:, max(start, 0) : max(start + length, 0)] += demand[:, None]
    free = np.clip(1.0 - used, 0.0, 1.0)
    full_speed = SAMPLES_PER_S_PER_CORE[kind] * cores
    share = LEAST_SHARE + (1.0 - LEAST_SHARE) * free[0]
    speeds = full_speed * share**0.9 * np.minimum(1.0, 0.5 + 0.5 * free[1] / NEEDED_MEMORY)
    mean_speeds = speeds.reshape(-1, TICKS).mean(axis=1)
    spikes = np.where(rng.random(num_iterations) < SPIKE_SHARE, rng.uniform(0.5, 0.9, num_iterations), 1.0)
    noisy = mean_speeds * spikes * np.maximum(0.5, 1.0 + NOISE * rng.standard_normal(num_iterations))
    measured = free[:, ::TICKS] + MEASURING_NOISE * rng.standard_normal((2, num_iterations))
    cpu, memory = np.clip(measured, 0.0, 1.0)
    return noisy, cpu, memory
