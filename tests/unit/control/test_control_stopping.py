"""The stop rules."""

from __future__ import annotations

import math

import pytest

from hpcbal.control.progress import best, evaluate
from hpcbal.errors import InputError
from hpcbal.events.history import EpochRecord
from hpcbal.events.members import StopRule


def history(*values: float, monitor: str = "val_accuracy") -> list[EpochRecord]:
    return [EpochRecord(i, i + 10, {monitor: v, "loss": 1.0}) for i, v in enumerate(values, start=1)]


def reason(rule: StopRule, *values: float) -> str | None:
    decision = evaluate(rule, history(*values))
    return None if decision is None else decision.reason


def test_nothing_is_decided_before_the_first_epoch() -> None:
    assert evaluate(StopRule(max_epochs=1), []) is None


def test_max_epochs_stops_whatever_the_metric_says() -> None:
    rule = StopRule(max_epochs=2)
    assert reason(rule, 0.1) is None
    decision = evaluate(rule, history(0.3, 0.1))
    assert decision is not None
    assert (decision.reason, decision.epoch) == ("max_epochs", 2)
    assert (decision.best_value, decision.best_epoch) == (0.3, 1)
    assert "2 of at most 2 epochs" in decision.detail


@pytest.mark.parametrize(
    ("mode", "target", "values", "expected"),
    [
        ("max", 0.9, (0.5, 0.9), "target"),
        ("max", 0.9, (0.5, 0.89), None),
        ("min", 0.2, (0.5, 0.2), "target"),
        ("min", 0.2, (0.5, 0.21), None),
    ],
)
def test_target_stops_once_reached(
    mode: str, target: float, values: tuple[float, ...], expected: str | None
) -> None:
    assert reason(StopRule(mode=mode, target=target, max_epochs=9), *values) == expected


@pytest.mark.parametrize(
    ("patience", "min_delta", "values", "expected"),
    [
        (2, 0.0, (0.5, 0.6, 0.6), None),
        (2, 0.0, (0.5, 0.6, 0.6, 0.6), "patience"),
        (2, 0.0, (0.5, 0.4, 0.6, 0.5), None),
        (1, 0.1, (0.5, 0.55), "patience"),
        (1, 0.1, (0.5, 0.65), None),
        # two gains of 0.06 add up to more than min_delta: an improvement in the second epoch
        (2, 0.1, (0.5, 0.56, 0.62, 0.6), None),
        (1, 0.0, (math.nan,), "patience"),
        (2, 0.0, (math.nan, 0.1, math.nan), None),
    ],
)
def test_patience_counts_epochs_without_improvement(
    patience: int, min_delta: float, values: tuple[float, ...], expected: str | None
) -> None:
    rule = StopRule(patience=patience, min_delta=min_delta, max_epochs=99)
    assert reason(rule, *values) == expected


@pytest.mark.parametrize(("patience", "detail"), [(1, "for 1 epoch ("), (2, "for 2 epochs (")])
def test_the_epochs_without_improvement_are_told(patience: int, detail: str) -> None:
    decision = evaluate(StopRule(patience=patience, max_epochs=9), history(*[0.5] * (patience + 1)))
    assert decision is not None
    assert detail in decision.detail


def test_patience_in_mode_min() -> None:
    rule = StopRule(mode="min", patience=1, max_epochs=99)
    assert reason(rule, 0.5, 0.4) is None
    assert reason(rule, 0.5, 0.5) == "patience"


def test_of_several_rules_the_first_in_order_is_named() -> None:
    rule = StopRule(patience=1, target=0.5, max_epochs=2)
    assert reason(rule, 0.6, 0.6) == "target"
    assert reason(rule, 0.4, 0.4) == "patience"
    assert reason(rule, 0.3, 0.4) == "max_epochs"


def test_a_metric_that_was_never_a_number_has_no_best() -> None:
    decision = evaluate(StopRule(patience=2, max_epochs=9), history(math.nan, math.nan))
    assert decision is not None
    assert (decision.best_value, decision.best_epoch) == (None, 0)


def test_best_follows_the_mode() -> None:
    assert best(StopRule(mode="min", max_epochs=1), history(0.5, 0.2, 0.3)).value == 0.2
    assert best(StopRule(max_epochs=1), history(0.5, 0.7, 0.7)).epoch == 2


def test_the_error_for_a_missing_metric_lists_the_existing_ones() -> None:
    with pytest.raises(InputError, match=r"'val_f1'.*loss, val_accuracy"):
        evaluate(StopRule(monitor="val_f1", max_epochs=3), history(0.1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "up"}, "stop.mode: got 'up', allowed: 'max', 'min'"),
        ({"min_delta": -0.1}, "stop.min_delta: got -0.1"),
        ({"patience": 0}, "stop.patience: got 0"),
        ({"target": math.nan}, "stop.target: got nan"),
        ({"max_epochs": 0}, "stop.max_epochs: got 0"),
    ],
)
def test_a_rule_out_of_range_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StopRule(**fields)  # type: ignore[arg-type]
