"""A run learns its workers' speeds beside training, starts with what it knew, and leaves nothing running."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.e2e

FOR_EVER = 10_000


def learning(predictor: str) -> dict[str, object]:
    """Three unlike slots; 45 steps give a model its 40 rows, and it is fitted in seconds.

    In slow steps trainers sleep: a fit has the lowest priority, so busy trainers would starve it.
    """
    policy = {"policy": "lb-bsp-cpu", "predictor": predictor}
    return {
        "dnns": [{"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": FOR_EVER}}],
        "backend": {
            "name": "emulated",
            "rates": {"a": {1: 200, 2: 390, 3: 550}},
            "workers": [{"speed": 1.5}, {"speed": 1.5}, {"speed": 0.5}],
        },
        "balance": {**policy, "first_fit": 45, "refit_every": FOR_EVER},
    }


def fitters(running) -> list[int]:
    return [pid for pid in running.all_pids() if "hpcbal.speed_models" in command_of(pid)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def is_fitted(lab) -> bool:
    if not list((lab.out / "dnns" / "a").glob("speeds-arima-*.npz")):  # cheaper to ask than a long ledger
        return False
    return any(epoch.facts.balance.fitted for epoch in lab.events("epoch-done"))


def test_a_fitted_model_is_used_and_reused(lab):
    """With the library that is loaded in the shortest time."""
    lab.configure(**learning("arima"))
    running = lab.start()
    running.until(lambda: is_fitted(lab), "step with a fitted model", 240.0)
    running.process.terminate()
    assert running.wait().code == 75
    used = [epoch.facts.balance for epoch in lab.events("epoch-done")]
    assert (used[0].predictor, used[0].fitted, used[0].fits) == ("arima", False, 0)
    assert sum(facts.fits for facts in used) == 1
    assert all(sum(facts.shares) == 24 for facts in used)
    slow = [facts.shares[2] - sum(facts.shares[:2]) / 2 for facts in used[1:]]
    assert np.median(slow) < 0  # single steps of a busy machine may say otherwise
    assert len(list((lab.out / "dnns" / "a").glob("speeds-arima-3-slots-*.npz"))) == 1

    num_before = len(used)
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) > num_before, "epoch of the second start")
    running.process.terminate()
    assert running.wait().code == 75
    again = lab.events("epoch-done")[num_before].facts.balance
    assert (again.fitted, again.fits) == (True, 0)


def test_a_killed_rank_leaves_no_fit_behind(lab):
    """The lab waits until no process of the run is left, and complains of those that stay."""
    lab.configure(**learning("narx"))  # whose fit takes a while
    running = lab.start()
    (fitter,) = running.until(lambda: fitters(running), "fit")
    owner = int(Path(f"/proc/{fitter}/stat").read_text().rpartition(")")[2].split()[1])
    assert owner in running.pids().values()
    assert "PMIX_RANK" not in Path(f"/proc/{fitter}/environ").read_text()
    os.kill(owner, signal.SIGKILL)
    assert running.wait().code not in (0, 75)
    assert not fitters(running)
