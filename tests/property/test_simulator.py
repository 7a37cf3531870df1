"""Any ensemble, on any machine, under any schedule: what is true of every simulated run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.control.ensemble import Ensemble, replay
from hpcbal.control.paradigms import PARADIGM_NAMES
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import Delta, EpochDone
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel, ReadingGroup
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import simulate

MAX_EPOCHS = 6


@dataclass(frozen=True)
class Case:
    """Arguments of a simulation."""

    epochs: dict[str, int]
    rates: dict[str, dict[int, float]]
    cluster: Cluster
    paradigm: str
    passes: PassModel
    costs: Costs
    alpha: float

    def settings(self) -> ScheduleSettings:
        return ScheduleSettings(
            num_positions=self.passes.num_positions,
            delta=Delta(relative=0.3),
            alpha=self.alpha,
            profile=False,
            paradigm=self.paradigm,
            seed=1,
        )

    def run(self, speed: float = 1.0, costs: Costs | None = None) -> SimulatedRun:
        table = {name: {m: speed * r for m, r in row.items()} for name, row in self.rates.items()}
        return simulate(
            self.specs(),
            self.cluster,
            self.settings(),
            RateTable(table, self.cluster.max_slots_per_node),
            self.passes,
            epochs=self.epochs,
            costs=costs or self.costs,
            keep_events=True,
        )

    def specs(self) -> list[DnnSpec]:
        return [DnnSpec(name, 4, StopRule(max_epochs=MAX_EPOCHS)) for name in self.rates]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = [f"d{i}" for i in range(draw(st.integers(1, 8)))]
    one = st.floats(1.0, 200.0)
    kept = st.floats(0.5, 1.0)
    rates = {}
    for name in names:
        rate, share = draw(one), draw(kept)
        rates[name] = {m: rate * m * share ** (m - 1) for m in (1, 2)}
    seconds = st.floats(0.0, 20.0)
    return Case(
        epochs={name: draw(st.integers(1, MAX_EPOCHS)) for name in names},
        rates=rates,
        cluster=Cluster(
            tuple(
                Node(f"n{i}", size)
                for i, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
            )
        ),
        paradigm=draw(st.sampled_from(PARADIGM_NAMES)),
        passes=PassModel(
            num_train=draw(st.integers(1, 500)),
            num_validation=draw(st.integers(0, 100)),
            ring_samples=draw(st.integers(0, 700)),
            preprocessing_samples_per_s=draw(st.none() | st.floats(1.0, 300.0)),
            hit_rate=draw(st.sampled_from([0.0, 1.0]) | st.floats(0.0, 1.0)),
        ),
        costs=Costs(
            build_s=draw(seconds),
            load_s=draw(seconds),
            checkpoint_s=draw(seconds),
            pass_s=draw(seconds),
            scheduling_s=draw(seconds),
        ),
        alpha=draw(st.floats(0.1, 1.0)),
    )


@settings(max_examples=40, deadline=None)
@given(cases())
def test_every_run_ends_with_all_dnns_trained_and_no_faster_than_the_bound(case: Case) -> None:
    run = case.run()
    assert run.outcome == "done"
    done = [timed.event.dnn_id for timed in run.events if isinstance(timed.event, EpochDone)]
    assert {name: done.count(name) for name in case.epochs} == case.epochs
    assert run.makespan_s >= run.lower_bound_s * (1 - 1e-9)
    assert run.makespan_s == pytest.approx(max(dnn.end_s for dnn in run.dnns))


@settings(max_examples=30, deadline=None)
@given(cases())
def test_a_slot_has_one_dnn_at_a_time_and_every_second_is_accounted_for(case: Case) -> None:
    run = case.run()
    for slot, idle_s in enumerate(run.idle_seconds()):
        spans = sorted((s.start_s, s.end_s) for s in run.spans if slot in s.slots)
        for (_, end_s), (start_s, _) in itertools.pairwise(spans):
            assert start_s >= end_s - 1e-6
        used_s = sum(end_s - start_s for start_s, end_s in spans)
        assert used_s + idle_s == pytest.approx(run.makespan_s, rel=1e-9, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([0.125, 0.25, 0.5, 2.0, 4.0, 8.0]))
def test_faster_dnns_shorten_a_run_in_proportion(case: Case, speed: float) -> None:
    """Powers of two scale rates without rounding, which may decide between equally good flotillas."""
    free = PassModel(case.passes.num_train, case.passes.num_validation, ring_samples=case.passes.ring_samples)
    plain = Case(case.epochs, case.rates, case.cluster, case.paradigm, free, Costs(), case.alpha)
    assert plain.run(speed).makespan_s * speed == pytest.approx(plain.run().makespan_s, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(cases())
def test_the_events_replay_to_the_same_end(case: Case) -> None:
    run = case.run()
    table = RateTable(case.rates, case.cluster.max_slots_per_node)
    specs = [
        DnnSpec(spec.dnn_id, 4, StopRule(max_epochs=case.epochs[spec.dnn_id]), ends_early=True)
        for spec in case.specs()
    ]
    again: Ensemble = replay(
        specs, case.cluster, case.settings(), table, None, [timed.event for timed in run.events]
    )
    again.check_invariants()
    assert (again.finished, again.outcome) == (True, "done")


@given(
    st.integers(1, 8),
    st.integers(0, 9),
    st.integers(0, 8),
    st.integers(1, 5),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_a_larger_cache_and_a_warmer_one_never_cost_time(
    num_makers: int, num_cold: int, num_helpers: int, num_merged: int, more: float, less: float
) -> None:
    less, more = sorted((more, less))

    def seconds(hit_rate: float, num_cold: int) -> float:
        passes = PassModel(100, preprocessing_samples_per_s=10.0, hit_rate=hit_rate, num_merged=num_merged)
        readers = [ReadingGroup(0.0, 0, 1e9)]
        return passes.finish_times(readers, num_makers, num_cold, num_makers + num_helpers)[0]

    assert (
        seconds(more, num_cold)
        <= seconds(less, num_cold) * (1 + 1e-9)
        <= 100 / 10.0 / num_makers * (1 + 1e-8)
    )
    assert seconds(more, num_cold) <= seconds(more, num_cold + 1) * (1 + 1e-9)
