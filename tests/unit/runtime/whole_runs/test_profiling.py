"""Rates are measured once, kept in profile.json, and measured again only where something has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcbal.policies.rates import starts_by_name


class Profiling:
    """Two DNNs; the configuration gives their rates on one slot, and those on two must be measured."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.use()

    def use(self, batch_size_of_b: int = 16) -> None:
        dnns = [self.lab.dnn(name, 2, hook="act") for name in "ab"]
        dnns[1]["batch_size"] = batch_size_of_b
        rates = {name: {1: 1e5} for name in "ab"}
        backend = {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": rates}
        profiling = {"max_batches": 4, "timed_batches": 2}
        self.lab.at_steps([], lambda: None)
        self.lab.use(dnns=dnns, backend=backend, schedule={"delta": "15%", "profiling": profiling})

    def measured(self) -> list[tuple[str, int]]:
        lines = self.lab.events("rate-measured")
        return sorted((line.dnn_id, line.num_slots) for line in lines)

    def starts(self) -> dict[str, float]:
        text = (self.lab.out / "profile.json").read_text(encoding="utf-8")
        return dict(starts_by_name(json.loads(text), ["a", "b"]))


@pytest.fixture
def profiling(lab: Any) -> Profiling:
    return Profiling(lab)


def test_profile_measures_and_run_uses_it(profiling: Profiling) -> None:
    lab = profiling.lab
    assert lab.run(profile_only=True) == 0
    first = profiling.measured()
    assert {("a", 2), ("b", 2)} <= set(first)
    assert not lab.events("round-started")
    assert not (lab.out / "results.csv").exists()
    starts = profiling.starts()
    assert starts.keys() == {"a", "b"}
    assert min(starts.values()) > 0.0
    assert lab.run() == 0
    assert profiling.measured() == first, "known rates were measured again"
    assert profiling.starts() == starts
    assert lab.events("round-started")[0].plan.index == 0


def test_only_what_has_changed_is_measured_again(profiling: Profiling) -> None:
    assert profiling.lab.run(profile_only=True) == 0
    before = len(profiling.measured())
    profiling.use(batch_size_of_b=24)
    assert profiling.lab.run(profile_only=True) == 0
    assert {line.dnn_id for line in profiling.lab.events("rate-measured")[before:]} == {"b"}


def test_a_stop_while_profiling_keeps_what_was_measured(profiling: Profiling) -> None:
    lab = profiling.lab
    lab.stop_at(6, rank=1, profile_only=True)  # in the first wave
    before = profiling.measured()
    assert lab.run(profile_only=True) == 0
    after = profiling.measured()
    assert len(set(after)) == len(after), "a rate was measured twice"
    assert set(before) < set(after)


def test_a_damaged_profile_causes_a_warning_and_is_measured_anew(profiling: Profiling, caplog: Any) -> None:
    lab = profiling.lab
    assert lab.run(profile_only=True) == 0
    first = profiling.measured()
    profile = lab.out / "profile.json"
    profile.write_text(profile.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert lab.run(profile_only=True) == 0
    assert "profile.json: the profile cannot be read" in caplog.text
    assert "the rates are measured again" in caplog.text
    assert profiling.measured() == sorted(2 * first)
    assert json.loads(profile.read_text(encoding="utf-8"))["entries"]
