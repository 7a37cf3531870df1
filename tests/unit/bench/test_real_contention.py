"""Every way to share steps out has a valid configuration, and its steps are counted in the same stretch."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from real_contention import BATCH_SIZE, BEGIN_S, END_S, STEPS, WAYS, config_of, outcome_of

from hpcbal.config import RunConfig


@pytest.mark.parametrize("way", WAYS)
def test_the_configuration_is_valid_and_says_how_steps_are_shared_out(way: str, tmp_path: Path) -> None:
    config = RunConfig.model_validate(config_of(way, tmp_path))
    balance = config.balance
    assert way in (balance.policy, balance.predictor)
    assert (balance.policy == "lb-bsp-cpu") == (way not in ("even", "fixed", "fitted"))
    num_samples = config.data.args["num_samples"]
    assert num_samples * (1.0 - config.data.validation_fraction) == pytest.approx(STEPS * BATCH_SIZE)


def ledger(pass_s: float, first_fitted_s: float | None = None) -> list[dict[str, Any]]:
    """Passes from 10 s on, all of the same length, until well after what counts."""
    ends_s = [10.0 + pass_s * number for number in range(int(2.0 * END_S / pass_s))]
    lines: list[dict[str, Any]] = [{"event": "run-started", "time": at(0.0)}]
    for end_s in ends_s:
        fitted = first_fitted_s is not None and end_s >= first_fitted_s
        lines.append({"event": "epoch-done", "time": at(end_s), "balance": {"fitted": fitted}})
    return lines


def at(seconds: float) -> str:
    return datetime.fromtimestamp(1000.0 + seconds, UTC).isoformat()


@pytest.mark.parametrize("pass_s", [0.9, 1.7, 25.0])
def test_a_step_is_what_whole_passes_took(pass_s: float) -> None:
    assert outcome_of(ledger(pass_s), 1000.0).step_s == pytest.approx(pass_s / STEPS)


def test_only_what_lies_in_the_stretch_counts() -> None:
    lines = ledger(1.0)
    slow = [line for line in lines if not at(BEGIN_S) <= line["time"] <= at(END_S)]
    assert outcome_of([line for line in lines if line not in slow], 1000.0) == outcome_of(lines, 1000.0)
    without_balance = [{key: line[key] for key in ("event", "time")} for line in lines]
    assert outcome_of(without_balance, 1000.0).fitted_share == 0.0


def test_it_is_told_in_how_many_passes_a_fitted_model_answered() -> None:
    middle_s = (BEGIN_S + END_S) / 2.0
    assert outcome_of(ledger(1.0, middle_s), 1000.0).fitted_share == pytest.approx(0.5, abs=0.02)
    assert outcome_of(ledger(1.0, END_S + 1.0), 1000.0).fitted_share == 0.0


def test_too_few_passes_are_an_error() -> None:
    with pytest.raises(SystemExit, match="1 passes in 60 s"):
        outcome_of(ledger(59.9), 1000.0)
