"""Every way to split steps has a valid configuration, and steps are counted in the same stretch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from contention.real import (
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
from ledger_lines import a, entry

from hpcbal.config import EnsembleConfig
from hpcbal.events.ensemble import EpochDone
from hpcbal.events.epoch import BalanceFacts, EpochFacts
from hpcbal.telemetry.ledger import Entry


@pytest.mark.parametrize("way", WAYS)
def test_the_configuration_is_valid_and_names_how_steps_are_split(way: str, tmp_path: Path) -> None:
    config = EnsembleConfig.model_validate(config_of(way, tmp_path, max_epochs=1))
    balance = config.balance
    assert way in (balance.policy, balance.predictor)
    assert (balance.policy == "lb-bsp-cpu") == (way not in ("even", "fixed", "fitted"))
    num_samples = config.data.args["num_samples"]
    assert num_samples * (1.0 - config.data.validation_fraction) == pytest.approx(STEPS * BATCH_SIZE)


def ledger(pass_s: float, other_pass_s: float | None = None) -> list[Entry]:
    """Passes without pauses, in the measured stretch and beyond it, where they may have another length.

    A fitted model predicts in the second half of the stretch.
    """
    entries = [epoch(-20.0)]  # of an earlier start
    end_s = 5.0
    while end_s < END_S + 40.0:
        entries.append(epoch(end_s, BalanceFacts((1, 1), fitted=end_s > (BEGIN_S + END_S) / 2.0)))
        end_s += pass_s if BEGIN_S <= end_s < END_S else (other_pass_s or pass_s)
    return entries


def epoch(end_s: float, balance: BalanceFacts | None = None) -> Entry:
    return entry(a(EpochDone, facts=a(EpochFacts, balance=balance)), unix_s=1000.0 + end_s)


@pytest.mark.parametrize("pass_s", [0.9, 1.7, 7.0, 25.0])
def test_a_step_is_a_part_of_its_pass(pass_s: float) -> None:
    assert outcome_of(ledger(pass_s), 1000.0).step_s == pytest.approx(pass_s / STEPS)


@pytest.mark.parametrize("other_pass_s", [0.5, 5.0])
def test_only_the_measured_stretch_counts(other_pass_s: float) -> None:
    """Passes of 5, 5.5, ... or 5, 10, ... seconds cross its beginning."""
    assert outcome_of(ledger(1.0, other_pass_s), 1000.0).step_s == pytest.approx(1.0 / STEPS)


def test_the_share_of_passes_with_a_fitted_model_is_reported() -> None:
    entries = ledger(1.0)
    assert outcome_of(entries, 1000.0).fitted_share == pytest.approx(0.5, abs=0.02)
    without_balance = [epoch(each.unix_s - 1000.0) for each in entries]
    assert outcome_of(without_balance, 1000.0).fitted_share == 0.0


@pytest.mark.parametrize(
    "covers", [lambda second: second > BEGIN_S, lambda second: second < END_S], ids=["end", "beginning"]
)
def test_passes_that_do_not_cover_the_stretch_are_an_error(covers: Callable[[float], bool]) -> None:
    entries = [each for each in ledger(1.0) if covers(each.unix_s - 1000.0)]
    with pytest.raises(SystemExit, match=f"passes do not cover the seconds from {BEGIN_S:g} to {END_S:g}"):
        outcome_of(entries, 1000.0)


def test_ways_are_compared_with_even_shares_under_the_same_bursts() -> None:
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
