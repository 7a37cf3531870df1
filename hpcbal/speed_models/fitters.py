"""The predictors that are fitted, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor
from hpcbal.speed_models.arima import fit_arima
from hpcbal.speed_models.narx import fit_narx
from hpcbal.speed_models.recurrent import fit_lstm, fit_rnn

# (recording, the predictor used so far) -> a model; libraries are imported when one is called.
Fitter = Callable[[SpeedHistory, SpeedPredictor | None], SpeedPredictor]

FITTERS: Mapping[str, Fitter] = MappingProxyType(
    {"arima": fit_arima, "lstm": fit_lstm, "narx": fit_narx, "rnn": fit_rnn}
)
