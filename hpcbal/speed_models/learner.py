"""Decide when a group's speed model is fitted, and what predicts until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from hpcbal.errors import InputError, PolicyError
from hpcbal.policies.batching.guard import Guard
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu
from hpcbal.policies.batching.speed import FITTED_BY, FITTED_EXTRAS, PREDICTORS, SpeedPredictor
from hpcbal.policies.batching.task import Observation
from hpcbal.speed_models.fitters import FITTERS, FitJob
from hpcbal.speed_models.recording import SpeedRecording

FIRST_FIT = 500  # iterations, [LBBSP] Sec. 4
REFIT_EVERY = 200
DEFAULT_GUARD = Guard()


class SpeedLearner:
    """The predictor of one group: first the last speeds, then models fitted to more and more iterations.

    Fitting takes far longer than an iteration may wait, so it is not done here: `job` returns a job that
    another process may run (`FitProcess`), and `use` accepts its result.

    Args:
        name: name of a predictor: `memoryless`, `ema`, or one that is fitted.
        num_workers: workers of the group, >= 1.
        model: model of an earlier run, to start with instead of the last speeds; None: there is none.
        first_fit, refit_every: iterations, >= 1.
        guard: limits what wrong predictions may cost; None: nothing does.

    Attributes:
        name: as given.
        policy: Alg. 1 with the newest predictor.

    Raises:
        PolicyError: if there is no such predictor, or an argument is out of range.
        InputError: if a package that the predictor needs is not installed.
    Source: [LBBSP] Sec. 4.
    """

    def __init__(
        self,
        name: str,
        num_workers: int,
        model: SpeedPredictor | None = None,
        first_fit: int = FIRST_FIT,
        refit_every: int = REFIT_EVERY,
        guard: Guard | None = DEFAULT_GUARD,
    ) -> None:
        if name not in PREDICTORS and name not in FITTERS:
            known = ", ".join(sorted([*PREDICTORS, *FITTERS]))
            raise PolicyError(f"speed predictor: got {name!r}, allowed: {known}")
        missing = [package for package in FITTED_BY.get(name, ()) if find_spec(package) is None]
        if missing:
            raise InputError(
                f"speed predictor {name} needs {' and '.join(missing)}, not installed here; pip install "
                f"'hpcbal[{FITTED_EXTRAS}]', or use one of {', '.join(sorted(PREDICTORS))}"
            )
        if first_fit < 1 or refit_every < 1:
            raise PolicyError(
                f"speed predictor {name}: first fit after {first_fit} iterations and again every "
                f"{refit_every}; allowed: 1 or more"
            )
        self.policy = LbBspCpu(model or PREDICTORS.get(name, PREDICTORS["memoryless"]), guard=guard)
        self.name = name
        self._recording = SpeedRecording(num_workers)
        self._due_at = first_fit
        self._refit_every = refit_every

    @property
    def is_fitted(self) -> bool:
        """Whether a fitted model predicts, not its substitute."""
        return self.policy.predictor not in PREDICTORS.values()

    def record(self, observations: Sequence[Observation]) -> None:
        """Record one iteration."""
        self._recording.add(observations)

    def job(self) -> FitJob | None:
        """Return a job to run now, anywhere, for a better model; None while nothing is due.

        The job holds a copy of the recording, so recording may continue. The next job is due `refit_every`
        iterations later, whether or not this one is run.
        """
        if self.name not in FITTERS or self._recording.num_recorded < self._due_at:
            return None
        self._due_at = self._recording.num_recorded + self._refit_every
        return FitJob(self.name, self._recording.snapshot(), self.policy.predictor)

    def postpone(self) -> None:
        """Make the last job due again, because it gave no model."""
        self._due_at = min(self._due_at, self._recording.num_recorded + 1)

    def use(self, model: SpeedPredictor) -> None:
        """Predict with `model` from the next decision on; the policy's state stays valid."""
        self.policy = replace(self.policy, predictor=model)
