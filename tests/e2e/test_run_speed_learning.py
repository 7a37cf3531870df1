"""A run learns its workers' speeds beside training, and starts with what it knew."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.e2e

FOR_EVER = 10_000
LEARNING = {
    "dnns": [{"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": FOR_EVER}}],
    "backend": {
        "name": "emulated",
        "rates": {"a": {1: 200, 2: 390, 3: 550}},
        "workers": [{"speed": 1.5}, {"speed": 1.5}, {"speed": 0.5}],
    },
    # 45 steps give a model its 40 rows.
    "balance": {"policy": "lb-bsp-cpu", "predictor": "narx", "first_fit": 45, "refit_every": FOR_EVER},
}


def is_fitted(lab) -> bool:
    if not list((lab.out / "dnns" / "a").glob("speeds-narx-*.npz")):  # cheaper to ask than a long ledger
        return False
    return any(epoch.facts.balance.fitted for epoch in lab.events("epoch-done"))


def test_a_fitted_model_is_used_and_reused(lab):
    lab.configure(**LEARNING)
    running = lab.start()
    running.until(lambda: is_fitted(lab), "step with a fitted model", 240.0)
    running.process.terminate()
    assert running.wait().code == 75
    used = [epoch.facts.balance for epoch in lab.events("epoch-done")]
    assert (used[0].predictor, used[0].fitted, used[0].fits) == ("narx", False, 0)
    assert sum(facts.fits for facts in used) == 1
    assert all(sum(facts.shares) == 24 for facts in used)
    slow = [facts.shares[2] - sum(facts.shares[:2]) / 2 for facts in used[1:]]
    assert np.median(slow) < 0  # single steps of a busy machine may say otherwise
    assert len(list((lab.out / "dnns" / "a").glob("speeds-narx-3-slots-*.npz"))) == 1

    num_before = len(used)
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) > num_before, "epoch of the second start")
    running.process.terminate()
    assert running.wait().code == 75
    again = lab.events("epoch-done")[num_before].facts.balance
    assert (again.fitted, again.fits) == (True, 0)
