"""Predictions of trained DNNs together: their answers, how good these are, and which DNNs to combine."""

from hpcbal.ensembling.answers import (
    Answers,
    Kind,
    Piece,
    agreeing_pairs,
    answers_of,
    disagreement,
    has_soft_labels,
    items_of,
    items_per_sample,
    items_shape,
    labels_of,
    pieces_of_rank,
    predictions_of,
    y_of,
)
from hpcbal.ensembling.calibration import (
    COVERAGE,
    TemperatureTally,
    calibrated_tally,
    calibration_evidence,
    entropies,
    half_width,
    tempered,
)
from hpcbal.ensembling.columns import columns_of_samples, prediction_columns
from hpcbal.ensembling.members import MemberTally
from hpcbal.ensembling.selection import (
    Combination,
    Loss,
    greedy_selection,
    log_loss_of_mean,
    squared_error_of_mean,
)
from hpcbal.ensembling.tallies import ClassTally, Tally, ValueTally, tally_of

__all__ = [
    "COVERAGE",
    "Answers",
    "ClassTally",
    "Combination",
    "Kind",
    "Loss",
    "MemberTally",
    "Piece",
    "Tally",
    "TemperatureTally",
    "ValueTally",
    "agreeing_pairs",
    "answers_of",
    "calibrated_tally",
    "calibration_evidence",
    "columns_of_samples",
    "disagreement",
    "entropies",
    "greedy_selection",
    "half_width",
    "has_soft_labels",
    "items_of",
    "items_per_sample",
    "items_shape",
    "labels_of",
    "log_loss_of_mean",
    "pieces_of_rank",
    "prediction_columns",
    "predictions_of",
    "squared_error_of_mean",
    "tally_of",
    "tempered",
    "y_of",
]
