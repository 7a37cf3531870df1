"""Alg. 1 with speeds that a model learns while the group trains: the master's side."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, Decision, Observation
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, LbBspCpuState
from hpcbal.runtime.balance.kept_models import KeptModel
from hpcbal.speed_models import SpeedLearner
from hpcbal.speed_models.fit_process import FitFailedError, FitProcess

log = logging.getLogger(__name__)


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
