"""`hpcbal profile` measures rates over real ranks; tests/unit/runtime/whole_runs shows that runs use them."""

from __future__ import annotations

import json

import pytest

from hpcbal.policies.rates import profile_by_name, starts_by_name

pytestmark = pytest.mark.e2e

RATES = {"slow": {1: 400}, "quick": {1: 1600}}


def configure(lab) -> None:
    """Two DNNs whose config gives the rates on one slot; those on several must be measured."""
    dnns = [{"name": name, "model": "toys:toy", "stop": {"max_epochs": 2}} for name in RATES]
    profiling = {"max_batches": 8, "timed_batches": 4}
    lab.configure(
        dnns=dnns,
        backend={"name": "emulated", "precision": "float64", "rates": RATES},
        schedule={"delta": "15%", "profiling": profiling},
        slots={"per_node": 2},
    )


def measured(lab) -> list[tuple[str, int]]:
    return sorted((line.dnn_id, line.num_slots) for line in lab.events("rate-measured"))


def profile(lab) -> dict:
    return json.loads((lab.out / "profile.json").read_text())


def test_profile_measures_and_trains_nothing(lab):
    configure(lab)
    done = lab.run("profile", "run.yaml")
    assert done.code == 0, done
    first = measured(lab)
    assert {("slow", 2), ("quick", 2)} <= set(first)
    assert not lab.events("round-started")
    assert not (lab.out / "results.csv").exists()
    start = starts_by_name(profile(lab), RATES)
    assert start.keys() == RATES.keys()
    assert all(seconds > 0.0 for seconds in start.values())
    known = profile_by_name(profile(lab), RATES, 2).measured
    for line in lab.events("rate-measured"):
        # A busy machine may be slower by any factor, but a step cannot be faster than its emulated slots.
        assert 0.0 < line.samples_per_s < 1.1 * line.num_slots * RATES[line.dnn_id][1], line
        assert known[line.dnn_id][line.num_slots] == pytest.approx(line.samples_per_s)
