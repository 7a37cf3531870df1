"""Alg. 1 with speeds that NARX networks learn while the group trains, kept for later rounds and starts."""

from __future__ import annotations

import io
import logging
import math
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcbal.errors import OutputError, PolicyError
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, Decision, Observation
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, LbBspCpuState, SpeedHistory
from hpcbal.policies.batching.narx import MOST_ITERATIONS, Narx, fit_narx
from hpcbal.policies.batching.time_curves import FloatArray
from hpcbal.telemetry.files.atomic_file import read_file, write_atomic

log = logging.getLogger(__name__)

FORMAT_VERSION = 2


class KeptModel:
    """The file of a DNN's models on one set of slots; each worker has its own network.

    If the file is damaged or cannot be written, a warning is logged and training continues without it.

    Args:
        folder: the DNN's directory.
        workers: identifiers of the group's workers, in rank order; slots of other hosts are other workers.
    """

    def __init__(self, folder: Path, workers: Sequence[str | int]) -> None:
        which = zlib.crc32(" ".join(map(str, workers)).encode())
        self.path = folder / f"speeds-narx-{len(workers)}-slots-{which:08x}.npz"
        self._num_workers = len(workers)

    def read(self) -> Narx | None:
        """The model, which was tried out; None if the file holds no usable one."""
        try:
            with np.load(io.BytesIO(read_file(self.path)), allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}  # verifies the checksum of each part
            if (version := found.pop("format", np.array(1)).tolist()) != FORMAT_VERSION:
                raise ValueError(f"it has format {version}, this hpcbal reads format {FORMAT_VERSION}")
            model = Narx(**{name: part.astype(np.float64) for name, part in found.items()})
            trial = SpeedHistory(*(np.full((self._num_workers, 8), value) for value in (1.0, 0.5, 0.5)))
            if model.predict(trial).shape != (self._num_workers,):
                raise ValueError("its parts do not fit each other")
        except FileNotFoundError:
            return None
        except (
            EOFError, KeyError, OSError, PolicyError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile,
        ) as error:  # fmt: skip
            log.warning("%s: the speed model is ignored: %s", self.path, error)
            return None
        return model

    def write(self, model: Narx) -> None:
        """Replace the file; may run in any thread."""
        data = io.BytesIO()
        parts: dict[str, Any] = {part.name: getattr(model, part.name) for part in fields(Narx)}
        np.savez(data, format=np.array(FORMAT_VERSION), **parts)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, data.getvalue())
        except (OSError, OutputError) as error:
            log.warning("the speed model is not saved: %s", error)


@cache
def _thread() -> ThreadPoolExecutor:
    """The thread in which this rank fits, for all DNNs and all sets of slots."""
    return ThreadPoolExecutor(1, "fit")


class SpeedLearning(BatchingPolicy[LbBspCpuState]):
    """A policy that records what the workers do, and has networks fitted in a thread beside training.

    It starts with the kept model, or else with the last speeds. Between two steps it takes a model that has
    been fitted, decides, and starts the next fit if it is due. If a fit fails, this is logged, the current
    model stays, and no more fits are started.

    Args:
        dnn: name of the DNN, for the log.
        policy: Alg. 1 with its settings.
        first_fit, refit_every: iterations until the first fit, and from one to the next, >= 1.
        kept: where fitted models are saved.

    Source: [LBBSP] Sec. 4.
    """

    cadence: ClassVar[Cadence] = LbBspCpu.cadence

    def __init__(self, dnn: str, policy: LbBspCpu, first_fit: int, refit_every: int, kept: KeptModel) -> None:
        self._dnn = dnn
        self._policy = policy
        self._due_at: float = first_fit
        self._refit_every = refit_every
        self._kept = kept
        self._model = kept.read()
        if self._model is not None:
            log.info("speeds are predicted by the model in %s", kept.path)
        self._recording: deque[FloatArray] = deque(maxlen=MOST_ITERATIONS)  # (3, num_workers) per iteration
        self._num_recorded = 0
        self._fit: Future[tuple[Narx, float]] | None = None
        self._num_fits = 0
        self._fit_s = 0.0

    def start(self, task: BatchTask) -> LbBspCpuState:
        return self._policy.start(task)

    def decide(self, state: LbBspCpuState, observations: Sequence[Observation]) -> Decision[LbBspCpuState]:
        self._take_model()
        policy = self._policy if self._model is None else replace(self._policy, predictor=self._model)
        decision = policy.decide(state, observations)
        newest = decision.state.history.newest(1)
        self._recording.append(np.concatenate([newest.speeds, newest.cpu, newest.memory], axis=1).T)
        self._num_recorded += 1
        if self._fit is None and self._num_recorded >= self._due_at:
            self._due_at = self._num_recorded + self._refit_every
            self._fit = _thread().submit(self._fitted, list(self._recording), self._model)
        return decision

    def take_facts(self) -> dict[str, Any]:
        """For the ledger: the predictor, whether its model is fitted, and the fits since the last call."""
        facts = {
            "predictor": "narx",
            "fitted": self._model is not None,
            "fits": self._num_fits,
            "fit_s": self._fit_s,
        }
        self._num_fits, self._fit_s = 0, 0.0
        return facts

    def _fitted(self, recording: Sequence[FloatArray], previous: Narx | None) -> tuple[Narx, float]:
        """The model, which has been saved, and the seconds that it took."""
        began_s = time.monotonic()
        model = fit_narx(SpeedHistory(*np.stack(recording, axis=-1)), previous)
        self._kept.write(model)
        return model, time.monotonic() - began_s

    def _take_model(self) -> None:
        if self._fit is None or not self._fit.done():
            return
        fit, self._fit = self._fit, None
        try:
            self._model, took_s = fit.result()
        except Exception as error:  # whatever it is, training goes on
            self._due_at = math.inf
            log.warning("%s: fitting a speed model failed; the current model stays: %s", self._dnn, error)
            return
        self._num_fits += 1
        self._fit_s += took_s
        log.info("%s: speeds are predicted by a new narx model", self._dnn)
