"""A short part of bench/soak_kills.py: a run is killed while it trains, and survives."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from soak.disturbing import Disturbance
from soak_kills import clean_outcome, disturbed_run

pytestmark = pytest.mark.e2e

PLANNED = [
    Disturbance("rank 3", signal.SIGKILL, 2, 0.1),
]


def test_a_run_of_the_soak_survives_a_kill(tmp_path: Path) -> None:
    wanted = clean_outcome(tmp_path / "clean", "elastic")
    faults = dict(disturbed_run(tmp_path / "run", "elastic", PLANNED, wanted))
    assert set(faults.values()) == {None}, faults
    assert len(faults) == len(PLANNED) + 1
