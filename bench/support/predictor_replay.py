"""Replay recorded workers under Alg. 1 of [LBBSP] with any predictor, fitted to the past only."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching import BATCHING, BatchTask, Observation
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, Memoryless, SpeedHistory, SpeedPredictor
from hpcbal.policies.batching.min_max import apportion
from hpcbal.policies.batching.narx import Narx, fit_narx

FloatArray = npt.NDArray[np.float64]
FORMAT = 1


@dataclass(frozen=True)
class Ema(SpeedPredictor):
    """The exponential moving average of the last iterations, with weight 0.2 of the newest.

    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    def predict(self, history: SpeedHistory) -> FloatArray:
        average = history.speeds[:, 0]
        for speeds in history.speeds.T[1:]:
            average = 0.8 * average + 0.2 * speeds
        return average


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

    def seen(self, k: int) -> SpeedHistory:
        """Return the history of the workers at the end of iteration k."""
        return SpeedHistory(self.speeds[:, : k + 1], self.cpu[:, 1 : k + 2], self.memory[:, 1 : k + 2])


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


def replay(name: str, traces: Traces, num_samples: int, fit_after: int, refit_every: int) -> dict[str, float]:
    """Replay one set of traces with one predictor; errors and times count from the first model on.

    Args:
        name: of the predictor: `memoryless`, `ema`, or `narx`, whose fit lasts one iteration.
        traces: of the workers.
        num_samples: of an iteration.
        fit_after, refit_every: iterations, as in a run.

    Raises: SystemExit: there are too few iterations, so none would count.

    Returns: `rmse` in samples/s, the mean over the workers; `time`, the mean iteration time over that of even
        batches; `predict_us` on the critical path, and `fit_s` per fit beside it.
    """
    num_workers, num_iterations = traces.speeds.shape
    if num_iterations < fit_after + 3:
        raise SystemExit(f"got {num_iterations} iterations, needed: {fit_after + 3} or more")
    policy = LbBspCpu(Ema() if name == "ema" else Memoryless())
    state = policy.start(BatchTask.uniform(num_samples, num_workers))
    squares, times_s, even_s, predict_s, fit_s = [], [], [], 0.0, []
    model: Narx | None = None
    for k in range(num_iterations - 1):
        if k > fit_after:
            times_s.append(float((np.array(state.batch_sizes) / traces.speeds[:, k]).max()))
            even_s.append(num_samples / num_workers / float(traces.speeds[:, k].min()))
        if model is not None:
            policy = replace(policy, predictor=model)
        if name == "narx" and k + 1 >= fit_after and (k + 1 - fit_after) % refit_every == 0:
            start = time.perf_counter()
            model = fit_narx(traces.seen(k), model)
            fit_s.append(time.perf_counter() - start)
        state = policy.decide(state, observe(traces, state.batch_sizes, k)).state
        if k >= fit_after:
            start = time.perf_counter()
            predicted = policy.predictor.predict(state.history)
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
