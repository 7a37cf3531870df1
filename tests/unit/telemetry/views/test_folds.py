"""Members of folds are summed up by configuration."""

from __future__ import annotations

from hpcbal.telemetry.views.evaluation import fold_sentences


def test_each_configuration_gets_its_mean_and_spread() -> None:
    scores = {"a-fold1": 0.5, "a-fold2": 0.7, "a-fold10": 0.9, "a": 0.1, "b-fold1": 1.0, "b-fold2": None}
    assert fold_sentences(scores, "best val acc") == [
        "a over 3 folds: best val acc 0.7000 +- 0.2000 (standard deviation), 0.5000 to 0.9000"
    ]
    assert fold_sentences({"a": 0.1, "a-fold": 0.2, "a-fold0": 0.3, "a-fold1x": 0.4}, "loss") == []
