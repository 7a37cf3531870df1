"""Every way to share steps out has a valid configuration, and its steps are counted in the same stretch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from real_contention import (
    BATCH_SIZE,
    BEGIN_S,
    END_S,
    STEPS,
    WAYS,
    Outcome,
    config_of,
    figures_of,
    outcome_of,
)

from hpcbal.config import EnsembleConfig


@pytest.mark.parametrize("way", WAYS)
def test_the_configuration_is_valid_and_says_how_steps_are_shared_out(way: str, tmp_path: Path) -> None:
    config = EnsembleConfig.model_validate(config_of(way, tmp_path, max_epochs=1))
    balance = config.balance
    assert way in (balance.policy, balance.predictor)
    assert (balance.policy == "lb-bsp-cpu") == (way not in ("even", "fixed", "fitted"))
    num_samples = config.data.args["num_samples"]
    assert num_samples * (1.0 - config.data.validation_fraction) == pytest.approx(STEPS * BATCH_SIZE)


def ledger(pass_s: float, other_pass_s: float | None = None) -> list[dict[str, Any]]:
    """Passes without a pause in the stretch that counts and beyond it, where they may last longer or shorter.

    A fitted model answers in the second half of the stretch.
    """
    lines: list[dict[str, Any]] = [{"event": "epoch-done", "time": at(-20.0)}]  # of an earlier start
    end_s = 5.0
    while end_s < END_S + 40.0:
        fitted = {"fitted": end_s > (BEGIN_S + END_S) / 2.0}
        lines.append({"event": "epoch-done", "time": at(end_s), "balance": fitted})
        end_s += pass_s if BEGIN_S <= end_s < END_S else (other_pass_s or pass_s)
    return lines


def at(seconds: float) -> str:
    return datetime.fromtimestamp(1000.0 + seconds, UTC).isoformat()


@pytest.mark.parametrize("pass_s", [0.9, 1.7, 7.0, 25.0])
def test_a_step_is_a_part_of_its_pass(pass_s: float) -> None:
    assert outcome_of(ledger(pass_s), 1000.0).step_s == pytest.approx(pass_s / STEPS)


@pytest.mark.parametrize("other_pass_s", [0.5, 5.0])
def test_only_what_lies_in_the_stretch_counts(other_pass_s: float) -> None:
    """5, 5.5, ... or 5, 10, ... meet its beginning."""
    assert outcome_of(ledger(1.0, other_pass_s), 1000.0).step_s == pytest.approx(1.0 / STEPS)


def test_it_is_told_in_how_many_passes_a_fitted_model_answered() -> None:
    lines = ledger(1.0)
    assert outcome_of(lines, 1000.0).fitted_share == pytest.approx(0.5, abs=0.02)
    without_balance = [{key: line[key] for key in ("event", "time")} for line in lines]
    assert outcome_of(without_balance, 1000.0).fitted_share == 0.0


@pytest.mark.parametrize(
    "covers", [lambda second: second > BEGIN_S, lambda second: second < END_S], ids=["end", "beginning"]
)
def test_passes_that_do_not_cover_the_stretch_are_an_error(covers: Callable[[float], bool]) -> None:
    lines = [
        line for line in ledger(1.0) if covers(datetime.fromisoformat(line["time"]).timestamp() - 1000.0)
    ]
    with pytest.raises(SystemExit, match=f"passes do not cover the seconds from {BEGIN_S:g} to {END_S:g}"):
        outcome_of(lines, 1000.0)


def test_ways_are_compared_with_what_even_shares_took_under_the_same_bursts() -> None:
    first = {
        "even": [Outcome(0.9, 0.0), Outcome(1.1, 0.0)],
        "narx": [Outcome(0.8, 0.5)],
        "fitted": [Outcome(0.7, 0.0)],
    }
    begun = {"even": [Outcome(2.0, 0.0)], "narx": [Outcome(1.2, 1.0)]}
    figures = figures_of([first, begun])
    assert figures["contended_narx_time"] == pytest.approx((0.8 + 0.6) / 2.0)
    assert figures["contended_fitted_time"] == pytest.approx(0.7)
    assert figures["contended_even_time"] == pytest.approx(1.0)
    assert figures["contended_even_spread"] == pytest.approx(1.1 / 0.9)
    assert figures["contended_narx_fitted_share"] == 0.75
    assert "contended_fitted_fitted_share" not in figures
