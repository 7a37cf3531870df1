"""Names of metrics say whether more is better: tables, results and stop rules go by them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.config import DnnConfig

OWN = "mymodule:wape"


def dnn(metrics: list[Any], **stop: Any) -> DnnConfig:
    optimizer = {"name": "sgd", "learning_rate": 0.1}
    return DnnConfig.model_validate(
        {
            "name": "a",
            "model": "m:f",
            "optimizer": optimizer,
            "batch_size": 8,
            "loss": "mse",
            "metrics": metrics,
            "stop": {"max_epochs": 5, **stop},
        }
    )


@pytest.mark.parametrize(
    ("metrics", "stop", "monitor", "mode"),
    [
        (["mae"], {}, "val_mae", "min"),
        (["r2_score"], {}, "val_r2_score", "max"),
        ([{"name": "mae", "shown_as": "days_error"}], {}, "val_days_error", "min"),
        ([OWN], {"mode": "max"}, "val_wape", "max"),
        ([{"name": OWN, "shown_as": "wape_error"}], {}, "val_wape_error", "min"),
        ([OWN], {"monitor": "val_loss"}, "val_loss", "min"),
        ([], {}, "val_loss", "min"),
    ],
)
def test_the_mode_follows_the_name(metrics: list[Any], stop: Any, monitor: str, mode: str) -> None:
    rule = dnn(metrics, **stop).stop.rule()
    assert (rule.monitor, rule.mode) == (monitor, mode)


@pytest.mark.parametrize(
    ("metrics", "stop", "message"),
    [
        (
            [{"name": "mae", "shown_as": "days_off"}],
            {},
            "less of mae is better, allowed: a name with one of loss",
        ),
        (
            [{"name": "auc", "shown_as": "auc_loss"}],
            {},
            "more of auc is better, allowed: a name without loss",
        ),
        ([OWN], {}, "it is not known whether more of wape is better"),
        ([OWN], {"mode": "min"}, "if less is better, give the metric a shown_as with one of loss"),
        ([{"name": OWN, "shown_as": "wape_error"}], {"mode": "max"}, "a shown_as without one of loss"),
        (["m:seconds"], {}, "the metric would be called 'seconds', allowed: any name but val_…, loss, epoch"),
        ([{"name": "auc", "shown_as": "learning_rate"}], {}, "called 'learning_rate', allowed: any name but"),
        (["mae"], {"monitor": "val_mse"}, "got 'val_mse', allowed: loss, mae, val_loss, val_mae"),
    ],
)
def test_names_that_would_mislead_are_refused(metrics: list[Any], stop: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dnn(metrics, **stop)


@pytest.mark.parametrize(("given", "meant"), [("acc", "accuracy"), ("accurac", "accuracy"), ("acu", "auc")])
def test_a_metric_that_others_name_differently_is_hinted_at(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"did you mean '{meant}'"):
        dnn([given])
