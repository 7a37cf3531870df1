"""What trained DNNs predict together: their answers, how good these are, and which DNNs to combine."""

from hpcbal.ensembling.agreement import disagreement
from hpcbal.ensembling.answers import Answers, OutputKind, answers_of, items_of, joined
from hpcbal.ensembling.scores import calibration_error, class_scores, value_scores
from hpcbal.ensembling.selection import Selection, greedy_selection, log_loss_of_mean, squared_error_of_mean

__all__ = [
    "Answers",
    "OutputKind",
    "Selection",
    "answers_of",
    "calibration_error",
    "class_scores",
    "disagreement",
    "greedy_selection",
    "items_of",
    "joined",
    "log_loss_of_mean",
    "squared_error_of_mean",
    "value_scores",
]
