"""Replay recorded workers under Alg. 1 of [LBBSP] with any predictor, fitted to the past only."""

from __future__ import annotations

import json
import time
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching import BATCHING, BatchTask, Observation
from hpcbal.policies.batching.min_max import apportion
from hpcbal.policies.batching.speed import SpeedPredictor
from hpcbal.speed_models import SpeedLearner

FloatArray = npt.NDArray[np.float64]
FORMAT = 1


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


@dataclass(frozen=True)
class Recording:
    """Real workers under contention, one column per iteration; shapes (num_workers, num_iterations).

    Attributes:
        num_samples: samples of each worker's share.
        processing_s: seconds until the worker arrived at the collective.
        cpu, memory: shares as `hpcbal.telemetry.resources.resource_use` measures them at that moment.
        about: what was recorded, when and how.
    """

    num_samples: npt.NDArray[np.int64]
    processing_s: FloatArray
    cpu: FloatArray
    memory: FloatArray
    about: Mapping[str, Any]

    def traces(self) -> Traces:
        """Speeds of each iteration, and the shares at its beginning, which is the end of the one before."""
        speeds = (self.num_samples / self.processing_s)[:, 1:]
        return Traces(speeds, self.cpu[:, :-1], self.memory[:, :-1])


def load_recording(path: Path) -> Recording:
    """Read a recording.

    Raises: SystemExit: there is no such file, or it is not a recording.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if int(file["format"]) != FORMAT:
                raise ValueError(f"format {int(file['format'])}, expected {FORMAT}")
            return Recording(
                file["num_samples"].astype(np.int64),
                file["processing_s"].astype(np.float64),
                file["cpu"].astype(np.float64),
                file["memory"].astype(np.float64),
                json.loads(str(file["about"])),
            )
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{path}: no recording ({error}); tests/data/contention.npz is one") from error


def observe(traces: Traces, batch_sizes: Sequence[int], k: int) -> list[Observation]:
    """Return the work of all workers in iteration k, and their resources at the start of the next one."""
    times_s = np.array(batch_sizes) / traces.speeds[:, k]
    return [
        Observation(size, float(time_s), cpu_share=float(cpu), memory_share=float(memory))
        for size, time_s, cpu, memory in zip(
            batch_sizes, times_s, traces.cpu[:, k + 1], traces.memory[:, k + 1], strict=True
        )
    ]


def replay(
    name: str, traces: Traces, num_samples: int, fit_after: int, refit_every: int, fit_lasts: int
) -> dict[str, float]:
    """Replay one set of traces with one predictor; errors and times count from the first model on.

    Args:
        name: of the predictor.
        traces: of the workers.
        num_samples: of an iteration.
        fit_after, refit_every: iterations, as in a run.
        fit_lasts: iterations from the start of a fit, beside training, to the first decision with its model.

    Raises: SystemExit: there are too few iterations, so none would count.

    Returns: `rmse` in samples/s, the mean over the workers; `time`, the mean iteration time over that of even
        batches; `predict_us` on the critical path, and `fit_s` per fit beside it.
    """
    num_workers, num_iterations = traces.speeds.shape
    if num_iterations < fit_after + fit_lasts + 3:
        raise SystemExit(f"got {num_iterations} iterations, needed: {fit_after + fit_lasts + 3} or more")
    learner = SpeedLearner(name, num_workers, first_fit=fit_after, refit_every=refit_every)
    state = learner.policy.start(BatchTask.uniform(num_samples, num_workers))
    squares, times_s, even_s, predict_s, fit_s = [], [], [], 0.0, []
    begun: deque[tuple[int, SpeedPredictor]] = deque()  # when its model is ready, and the model
    for k in range(num_iterations - 1):
        if k > fit_after + fit_lasts:
            times_s.append(float((np.array(state.batch_sizes) / traces.speeds[:, k]).max()))
            even_s.append(num_samples / num_workers / float(traces.speeds[:, k].min()))
        seen = observe(traces, state.batch_sizes, k)
        learner.record(seen)
        if not begun and (job := learner.job()) is not None:  # one at a time, as in a run
            start = time.perf_counter()
            begun.append((k + fit_lasts, job()))
            fit_s.append(time.perf_counter() - start)
        if begun and begun[0][0] <= k:
            learner.use(begun.popleft()[1])
        state = learner.policy.decide(state, seen).state
        if k >= fit_after + fit_lasts:
            start = time.perf_counter()
            predicted = learner.policy.predictor.predict(state.history)
            predict_s += time.perf_counter() - start
            squares.append((predicted - traces.speeds[:, k + 1]) ** 2)
    return {
        "rmse": float(np.sqrt(np.mean(squares, axis=0)).mean()),
        "time": float(np.mean(times_s) / np.mean(even_s)),
        "predict_us": 1e6 * predict_s / len(squares),
        "fit_s": float(np.mean(fit_s)) if fit_s else 0.0,
    }


def replay_fitted(traces: Traces, num_samples: int, fit_after: int) -> float:
    """Mean iteration time of `fitted`, which learns curves and not speeds, over that of even batches."""
    num_workers, num_iterations = traces.speeds.shape
    policy = BATCHING["fitted"]
    state = policy.start(BatchTask.uniform(num_samples, num_workers))
    times_s, even_s = [], []
    for k in range(num_iterations - 1):
        if k > fit_after:
            times_s.append((np.array(state.batch_sizes) / traces.speeds[:, k]).max())
            even_s.append(num_samples / num_workers / traces.speeds[:, k].min())
        state = policy.decide(state, observe(traces, state.batch_sizes, k)).state
    return float(np.mean(times_s) / np.mean(even_s))


def limit(traces: Traces, num_samples: int, fit_after: int) -> float:
    """Mean iteration time over that of even batches if every speed is known beforehand."""
    num_workers, num_iterations = traces.speeds.shape
    known_s, even_s = [], []
    for k in range(fit_after + 1, num_iterations - 1):
        speeds = traces.speeds[:, k]
        known_s.append((np.array(apportion(num_samples, speeds.tolist())) / speeds).max())
        even_s.append(num_samples / num_workers / speeds.min())
    return float(np.mean(known_s) / np.mean(even_s))
