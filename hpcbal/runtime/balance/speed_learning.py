"""Alg. 1 with speeds that a model learns while the group trains, kept for later rounds."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hpcbal.errors import OutputError
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, Decision, Observation
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, LbBspCpuState
from hpcbal.policies.batching.speed import SpeedPredictor
from hpcbal.speed_models import SpeedLearner
from hpcbal.speed_models.fit_process import (
    DamagedModelError,
    FitFailedError,
    FitProcess,
    pack_model,
    unpack_model,
)
from hpcbal.telemetry.files.atomic_file import read_file, write_atomic

log = logging.getLogger(__name__)


class KeptModel:
    """The file of one predictor for one DNN on one set of slots; each worker has its own model.

    If the file is damaged or cannot be written, a warning is logged and training continues without it.

    Args:
        folder: the DNN's directory.
        predictor: name of the predictor.
        workers: identifiers of the group's workers, in rank order; slots of other hosts are other workers.
    """

    def __init__(self, folder: Path, predictor: str, workers: Sequence[str | int]) -> None:
        which = zlib.crc32(" ".join(map(str, workers)).encode())
        self.path = folder / f"speeds-{predictor}-{len(workers)}-slots-{which:08x}.npz"
        self._predictor = predictor
        self._num_workers = len(workers)

    def read(self) -> SpeedPredictor | None:
        """The model; None if the file holds no usable model."""
        try:
            data = read_file(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: the speed model cannot be read: %s", self.path, error)
            return None
        try:
            predictor, num_workers, model = unpack_model(data)
        except DamagedModelError as error:
            log.warning("%s: the speed model is ignored: %s", self.path, error)
            return None
        if (predictor, num_workers) != (self._predictor, self._num_workers):
            log.warning(
                "%s: the speed model is ignored: it was fitted by %s for %d workers",
                self.path,
                predictor,
                num_workers,
            )
            return None
        return model

    def write(self, model: SpeedPredictor) -> None:
        """Replace the file; may run in any thread."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, pack_model(self._predictor, model))
        except (OSError, OutputError) as error:
            log.warning("the speed model is not saved: %s", error)


class SpeedLearning(BatchingPolicy[LbBspCpuState]):
    """A policy for one round of a group; it records observations and has models fitted in the background.

    Between two steps it records the observations, takes a model that has been fitted, starts the next fit if
    it is due, and decides with the current model. A failed fit is logged once; the round continues with the
    current model and starts no more fits.

    Args:
        dnn: name of the DNN, for the log.
        learner: the group's learner, which is kept from round to round.
        fitting: runs the fits; closed with this object.
        kept: where fitted models are saved.
    """

    cadence: ClassVar[Cadence] = LbBspCpu.cadence

    def __init__(self, dnn: str, learner: SpeedLearner, fitting: FitProcess, kept: KeptModel) -> None:
        self._dnn = dnn
        self._learner = learner
        self._fitting = fitting
        self._kept = kept
        self._gave_up = False
        self._began_s = 0.0
        self._num_fits = 0
        self._fit_s = 0.0

    def start(self, task: BatchTask) -> LbBspCpuState:
        return self._learner.policy.start(task)

    def decide(self, state: LbBspCpuState, observations: Sequence[Observation]) -> Decision[LbBspCpuState]:
        self._learner.record(observations)
        self._take_model()
        if not self._gave_up and not self._fitting.is_busy and (job := self._learner.job()) is not None:
            self._began_s = time.monotonic()
            self._fitting.start(job, self._kept.write)
        return self._learner.policy.decide(state, observations)

    def take_facts(self) -> dict[str, Any]:
        """For the ledger: the predictor, whether its model is fitted, and the fits since the last call."""
        facts = {
            "predictor": self._learner.name,
            "fitted": self._learner.is_fitted,
            "fits": self._num_fits,
            "fit_s": self._fit_s,
        }
        self._num_fits, self._fit_s = 0, 0.0
        return facts

    def close(self) -> None:
        """End a running fit; it is due again when the group trains again."""
        self._take_model()
        if self._fitting.is_busy:
            self._learner.postpone()
        self._fitting.close()

    def _take_model(self) -> None:
        try:
            model = self._fitting.take()
        except FitFailedError as error:
            self._gave_up = True
            log.warning(
                "%s: fitting a speed model failed; this round continues with the current model: %s",
                self._dnn,
                error,
            )
            return
        if model is not None:
            self._learner.use(model)
            self._num_fits += 1
            self._fit_s += time.monotonic() - self._began_s
            log.info("%s: speeds are predicted by a new %s model", self._dnn, self._learner.name)
