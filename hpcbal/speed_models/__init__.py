"""Speed predictors fitted to recordings, with libraries that policies do not import."""

from hpcbal.speed_models.fitters import FITTERS, FitJob, Fitter
from hpcbal.speed_models.learner import SpeedLearner
from hpcbal.speed_models.recording import SpeedRecording

__all__ = ["FITTERS", "FitJob", "Fitter", "SpeedLearner", "SpeedRecording"]
