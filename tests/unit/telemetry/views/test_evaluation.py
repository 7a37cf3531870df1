"""evaluation.json survives a round trip, damage is reported, and the verdict is what the numbers say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbal.errors import InputError
from hpcbal.telemetry.views.evaluation import (
    EvaluatedDnn,
    EvaluatedEnsemble,
    Evaluation,
    read_evaluation,
    render_evaluation,
    write_evaluation,
)

EVALUATION = Evaluation(
    run="lab",
    data="data.test",
    is_test=True,
    num_samples=100,
    measure="accuracy",
    more_is_better=True,
    evaluated_at="2026-11-23T12:00:00.000Z",
    num_ranks=2,
    dnns=(
        EvaluatedDnn("small", "last", 3, {"loss": 0.5, "accuracy": 0.8, "calibration_error": 0.1}, 0.25),
        EvaluatedDnn("large", "best", 12, {"loss": None, "accuracy": 0.9, "calibration_error": 0.2}, 0.75),
    ),
    ensembles=(
        EvaluatedEnsemble("mean of all", 2, {"accuracy": 0.91, "calibration_error": 0.05}),
        EvaluatedEnsemble("greedy selection", 2, {"accuracy": 0.89}),
    ),
    disagreement=0.123,
    left_out={"broken": "it failed in training"},
    num_broken=1,
    broken=("sample 3 (row 3): unreadable",),
    notes=("a note",),
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    assert read_evaluation(path) is None
    write_evaluation(path, EVALUATION)
    assert read_evaluation(path) == EVALUATION
    bins = ((3, 0.5, 1.0), (2, 0.9, 0.5))
    small = replace(EVALUATION.dnns[0], contribution=-0.5, reliability=bins, reliability_calibrated=bins)
    mean = replace(EVALUATION.ensembles[0], reliability=bins)
    more = replace(
        EVALUATION, dnns=(small, EVALUATION.dnns[1]), ensembles=(mean,), distances=((0.0, 0.5), (0.5, 0.0))
    )
    write_evaluation(path, more)
    assert read_evaluation(path) == more
    table = render_evaluation(more)
    assert "-0.5000" in table
    assert "contribution: how much the negative log-likelihood of the mean of all rises" in table
    assert json.loads(path.read_text())["schema"] == 1


def test_the_table_shows_all_scores_and_what_people_should_know() -> None:
    text = render_evaluation(EVALUATION)
    assert text.splitlines()[2].split() == [
        "name",
        "weights",
        "epoch",
        "loss",
        "accuracy",
        "calibration",
        "error",
        "share",
    ]
    assert "large                 best        12       -    0.9000             0.2000   0.75" in text
    assert "two DNNs disagree on 12.30 % of the predictions, averaged over all pairs" in text
    assert "the mean of all (2 DNNs) beats the best DNN, large: accuracy 0.9100 and 0.9000" in text
    assert "the greedy selection (2 DNNs) does not beat the best DNN, large: accuracy 0.8900" in text
    assert "left out: broken: it failed in training" in text
    assert "left out 1 sample: sample 3 (row 3): unreadable" in text
    assert text.endswith("note: a note")


def test_an_ensemble_that_is_only_as_good_says_so() -> None:
    same = replace(EVALUATION, ensembles=(EvaluatedEnsemble("mean of all", 2, {"accuracy": 0.9}),))
    assert same.verdicts() == (
        "the mean of all (2 DNNs) equals the best DNN, large: accuracy 0.9000 and 0.9000",
    )


def test_for_errors_less_is_better() -> None:
    errors = replace(
        EVALUATION,
        measure="mse",
        more_is_better=False,
        dnns=(EvaluatedDnn("a", "last", 1, {"mse": 2.0}), EvaluatedDnn("b", "last", 1, {"mse": 1.0})),
        ensembles=(EvaluatedEnsemble("mean of all", 2, {"mse": 0.5}),),
    )
    assert errors.verdicts() == ("the mean of all (2 DNNs) beats the best DNN, b: mse 0.5000 and 1.0000",)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 9}', '{"schema": 1, "dnns": 3}', "\x00"])
def test_a_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not an evaluation of this hpcbal"):
        read_evaluation(path)


def test_values_of_the_wrong_type_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_evaluation(path, EVALUATION)
    path.write_text(path.read_text().replace('"accuracy": 0.8', '"accuracy": "high"'))
    with pytest.raises(InputError, match="write it again with 'hpcbal evaluate'"):
        read_evaluation(path)
