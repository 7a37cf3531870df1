"""Say when a group's speed model is to be fitted, and what predicts until then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec

from hpcbal.errors import InputError, PolicyError
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu
from hpcbal.policies.batching.speed import PREDICTORS, SpeedPredictor
from hpcbal.policies.batching.task import Observation
from hpcbal.speed_models.fitters import FITTERS
from hpcbal.speed_models.recording import SpeedRecording

FIRST_FIT = 500  # iterations, [LBBSP] Sec. 4
REFIT_EVERY = 200


class SpeedLearner:
    """The predictor of one group: the average at first, then models fitted to ever more iterations.

    Fitting takes far longer than an iteration may wait, so it is not done here: `job` hands out a function
    that may run in another thread, and `use` takes its result when it is there.

    Args:
        name: of a predictor: `memoryless`, `ema`, or one that is fitted.
        num_workers: of the group, >= 1.
        model: fitted in an earlier run, to start with instead of the average; None: there is none.
        first_fit, refit_every: iterations, >= 1.

    Attributes:
        policy: Alg. 1 with the newest predictor.

    Raises:
        PolicyError: no predictor is called so, or an argument is out of range.
        InputError: the predictor needs SciPy, and there is none.
    Source: [LBBSP] Sec. 4.
    """

    def __init__(
        self,
        name: str,
        num_workers: int,
        model: SpeedPredictor | None = None,
        first_fit: int = FIRST_FIT,
        refit_every: int = REFIT_EVERY,
    ) -> None:
        if name not in PREDICTORS and name not in FITTERS:
            known = ", ".join(sorted([*PREDICTORS, *FITTERS]))
            raise PolicyError(f"speed predictor: got {name!r}, allowed: {known}")
        if name in FITTERS and find_spec("scipy") is None:
            raise InputError(
                f"speed predictor {name} is fitted by SciPy, which is not installed; pip install "
                f"'hpcbal[balance]', or take one of {', '.join(sorted(PREDICTORS))}"
            )
        if first_fit < 1 or refit_every < 1:
            raise PolicyError(
                f"speed predictor {name}: first fit after {first_fit} iterations and again every "
                f"{refit_every}; allowed: 1 or more"
            )
        self.policy = LbBspCpu(model or PREDICTORS.get(name, PREDICTORS["ema"]))
        self._fitter = FITTERS.get(name)
        self._recording = SpeedRecording(num_workers)
        self._due_at = first_fit
        self._refit_every = refit_every

    def record(self, observations: Sequence[Observation]) -> None:
        """Remember one iteration."""
        self._recording.add(observations)

    def job(self) -> Callable[[], SpeedPredictor] | None:
        """What is to be run now, anywhere, to get a better model; None while nothing is due.

        It holds a copy of the recording, so recording may go on. The next one is due `refit_every` iterations
        later, whether or not this one is run.
        """
        if self._fitter is None or self._recording.num_recorded < self._due_at:
            return None
        self._due_at = self._recording.num_recorded + self._refit_every
        fitter, recording, previous = self._fitter, self._recording.snapshot(), self.policy.predictor
        return lambda: fitter(recording, previous)

    def use(self, model: SpeedPredictor) -> None:
        """Predict with `model` from the next decision on; the policy's state stays valid."""
        self.policy = replace(self.policy, predictor=model)
