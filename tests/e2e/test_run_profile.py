"""Rates are measured once, kept in profile.json, and measured again only where something has changed."""

from __future__ import annotations

import json
import signal

import pytest

from hpcbal.policies import starts_by_name

pytestmark = pytest.mark.e2e

RATES = {"slow": {1: 400}, "quick": {1: 1600}}


def configure(lab, batch_size_of_quick: int = 16) -> None:
    """Two DNNs of which the config tells the rates on one slot; those on several must be measured."""
    dnns = [
        {
            "name": name,
            "model": "toys:toy",
            "batch_size": batch_size_of_quick if name == "quick" else 16,
            "stop": {"max_epochs": 2},
        }
        for name in RATES
    ]
    profiling = {"max_batches": 8, "timed_batches": 4}
    lab.configure(
        dnns=dnns,
        backend={"name": "emulated", "precision": "float64", "rates": RATES},
        schedule={"delta": "15%", "profiling": profiling},
    )


def measured(lab) -> list[tuple[str, int]]:
    return sorted((line.dnn, line.num_gpus) for line in lab.events("rate-measured"))


def starts(lab) -> dict[str, float]:
    return starts_by_name(json.loads((lab.out / "profile.json").read_text()), RATES)


def test_profile_measures_and_run_uses_it(lab):
    configure(lab)
    done = lab.run("profile", "run.yaml")
    assert done.code == 0, done
    first = measured(lab)
    assert {("slow", 2), ("quick", 2)} <= set(first)
    assert not lab.events("round-started")
    assert not (lab.out / "results.csv").exists()
    start = starts(lab)
    assert start.keys() == RATES.keys()
    assert all(0.0 < seconds < 20.0 for seconds in start.values())
    for line in lab.events("rate-measured"):
        single = RATES[line.dnn][1]
        assert 0.2 * single < line.samples_per_s < 1.1 * line.num_gpus * single, line
    done = lab.run()
    assert done.code == 0, done
    assert measured(lab) == first, "known rates were measured again"
    assert starts(lab) == start
    assert lab.events("round-started")[0].plan.index == 0


def test_only_what_has_changed_is_measured_again(lab):
    configure(lab)
    assert lab.run("profile", "run.yaml").code == 0
    before = len(measured(lab))
    configure(lab, batch_size_of_quick=24)
    done = lab.run("profile", "run.yaml")
    assert done.code == 0, done
    assert {line.dnn for line in lab.events("rate-measured")[before:]} == {"quick"}


def test_a_stop_while_profiling_keeps_what_was_measured(lab):
    configure(lab)
    running = lab.start("profile", "run.yaml")
    running.until(lambda: lab.events("rate-measured"), "rate")
    running.signal_rank(2, signal.SIGTERM)
    done = running.wait()
    assert done.code == 75, done
    before = measured(lab)
    done = lab.run("profile", "run.yaml")
    assert done.code == 0, done
    assert len(set(measured(lab))) == len(measured(lab)), "a rate was measured twice"
    assert set(before) < set(measured(lab))


def test_a_damaged_profile_is_warned_of_and_measured_anew(lab):
    configure(lab)
    assert lab.run("profile", "run.yaml").code == 0
    first = measured(lab)
    profile = lab.out / "profile.json"
    profile.write_text(profile.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    done = lab.run("profile", "run.yaml")
    assert done.code == 0, done
    assert "profile.json: profile cannot be read" in done.err, done
    assert "the rates are measured anew" in done.err, done
    assert "Traceback" not in done.err, done
    assert measured(lab) == sorted(2 * first)
    assert json.loads(profile.read_text(encoding="utf-8"))["entries"]
