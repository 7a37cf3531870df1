"""The predictors that are fitted, by name, and one fit as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor
from hpcbal.speed_models.arima import fit_arima
from hpcbal.speed_models.narx import fit_narx
from hpcbal.speed_models.recurrent import fit_lstm, fit_rnn

# (recording, previous predictor) -> model; the libraries are imported only when one is called.
Fitter = Callable[[SpeedHistory, SpeedPredictor | None], SpeedPredictor]

FITTERS: Mapping[str, Fitter] = MappingProxyType(
    {"arima": fit_arima, "lstm": fit_lstm, "narx": fit_narx, "rnn": fit_rnn}
)


@dataclass(frozen=True, slots=True, eq=False)
class FitJob:
    """One fit that is due; call it to fit in the current process.

    Attributes:
        name: name of the fitter.
        recording: data to fit.
        previous: the predictor used so far.
    """

    name: str
    recording: SpeedHistory
    previous: SpeedPredictor | None

    def __call__(self) -> SpeedPredictor:
        """Return the fitted model."""
        return FITTERS[self.name](self.recording, self.previous)
