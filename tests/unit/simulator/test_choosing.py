"""Schedules are chosen by replaying the rest of the run under each candidate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.paradigms import AUTO
from hpcbal.control.progress import DnnProgress, ResumeState, ScheduleSettings
from hpcbal.control.schedules import candidates, choose
from hpcbal.control.states import DnnState
from hpcbal.events.ensemble import ChooseSchedule, Delta, Started
from hpcbal.events.history import EpochRecord
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.choosing import MOST_EPOCHS, Outset, choose_schedule, predict_schedules
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import simulate

Sim = Callable[..., SimulatedRun]
OPEN: dict[str, Any] = {"paradigm": AUTO, "delta": None, "alpha": None}
EXAMPLE = {"a": {1: 1500.0, 2: 2850.0}, "b": {1: 1300.0, 2: 2470.0}, "c": {1: 580.0, 2: 1102.0}}


def outset(
    rates: dict[str, dict[int, float]],
    epochs: dict[str, int],
    num_slots: int,
    resume: ResumeState | None = None,
    **settings: Any,
) -> Outset:
    return Outset(
        tuple(DnnSpec(name, 64, StopRule(max_epochs=count)) for name, count in epochs.items()),
        Cluster.uniform(1, num_slots),
        ScheduleSettings(**{"num_positions": 1000, "profile": False, **OPEN, **settings}),
        RateTable(rates, num_slots),
        PassModel(900, 100, ring_samples=64),
        Costs(form_s=0.3, checkpoint_s=0.1),
        resume or ResumeState(),
    )


def drawn(seed: int) -> Outset:
    """An ensemble of 2 to 12 DNNs, with rates and lengths up to 10 times apart."""
    rng = random.Random(seed)
    names = [f"d{i}" for i in range(rng.randint(2, 12))]
    slots = rng.randint(1, 8)
    rates = {}
    for name in names:
        rate, kept = 10 ** rng.uniform(2.0, 3.0), rng.uniform(0.8, 0.98)
        rates[name] = {m: rate * m * kept ** (m - 1) for m in range(1, slots + 1)}
    return outset(rates, {name: rng.randint(2, 20) for name in names}, slots)


# ---- the example of three DNNs on eight slots ---------------------------------------------------


def test_dnns_of_unlike_rates_share_a_round_without_any_setting(sim: Sim) -> None:
    epochs = dict.fromkeys(EXAMPLE, 36)
    given = {"slots": (8,), "max_slots_per_dnn": 2}
    paper, alone = sim(EXAMPLE, epochs, **given), sim(EXAMPLE, epochs, paradigm="independent", **given)
    auto = sim(EXAMPLE, epochs, **given, **OPEN)
    wide = sim(EXAMPLE, epochs, delta=Delta(relative=5.0), **given)
    assert [len(record.plan.groups) for record in paper.rounds] == [1, 1, 1]  # one after the other
    assert [len(record.plan.groups) for record in auto.rounds] == [3]
    assert auto.makespan_s == pytest.approx(wide.makespan_s)
    assert auto.makespan_s < 0.6 * min(paper.makespan_s, alone.makespan_s)


# ---- predictions --------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", [None, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_prediction_is_the_makespan_of_the_whole_simulation(seed: int, patience: int | None) -> None:
    """With patience, a run that shares slots cannot know that all DNNs will train to max_epochs."""
    at = drawn(seed)
    longest = {spec.dnn_id: spec.stop.max_epochs for spec in at.specs}
    epochs = None if patience is None else longest  # the simulation knows these, its decisions do not
    rules = {name: StopRule(max_epochs=most, patience=patience) for name, most in longest.items()}
    at = replace(at, specs=tuple(replace(spec, stop=rules[spec.dnn_id]) for spec in at.specs))
    for found in predict_schedules(at, candidates(at.settings), cut_beyond=math.inf):
        settings = replace(at.settings.under(found.schedule), checkpoint_every_pass=False)
        run = simulate(at.specs, at.cluster, settings, at.rates, at.passes, costs=at.costs, epochs=epochs)
        assert found.remaining_s == pytest.approx(run.makespan_s)
        assert found.num_rounds == len(run.rounds)
        assert not found.is_cut


@pytest.mark.parametrize("seed", range(4))
def test_giving_up_slow_candidates_does_not_change_the_choice(seed: int) -> None:
    at = drawn(seed)
    schedules = candidates(at.settings)
    whole = choose(predict_schedules(at, schedules, cut_beyond=math.inf))
    cut = choose(predict_schedules(at, schedules))
    assert (cut.schedule, cut.prediction.remaining_s) == (whole.schedule, whole.prediction.remaining_s)
    for found in cut.predictions:
        if found.is_cut:
            longer = next(p for p in whole.predictions if p.schedule == found.schedule)
            assert longer.remaining_s >= found.remaining_s


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_chooses_is_no_slower_than_any_fixed_schedule(seed: int) -> None:
    at = drawn(seed)
    auto = simulate(at.specs, at.cluster, at.settings, at.rates, at.passes, costs=at.costs)
    for schedule in candidates(at.settings):
        if schedule.alpha in (None, 0.8):
            fixed = simulate(
                at.specs, at.cluster, at.settings.under(schedule), at.rates, at.passes, costs=at.costs
            )
            assert auto.makespan_s <= fixed.makespan_s * (1.0 + 1e-9)


def test_the_same_question_has_the_same_answer() -> None:
    at = drawn(5)
    asked = ChooseSchedule(candidates(at.settings), None)
    assert choose_schedule(at, asked) == choose_schedule(at, asked)


def test_dnns_that_are_over_and_epochs_that_are_done_do_not_count() -> None:
    epochs = {"a": 10, "b": 10, "c": 10}
    history = tuple(EpochRecord(i + 1, i) for i in range(9))
    progress = {
        "a": DnnProgress(state=DnnState.DONE),
        "b": DnnProgress(epochs=9, history=history),
        "c": DnnProgress(state=DnnState.FAILED, cause="nan"),
    }
    at = outset(EXAMPLE, epochs, 1, ResumeState(dnns=progress))
    alone = next(
        p for p in predict_schedules(at, candidates(at.settings)) if p.schedule.paradigm == "independent"
    )
    assert alone.remaining_s == pytest.approx(0.3 + 0.1 + at.passes.seconds(1300.0))


def test_very_many_epochs_are_merged_and_change_little() -> None:
    few, many = dict.fromkeys(EXAMPLE, 50), dict.fromkeys(EXAMPLE, 50 * MOST_EPOCHS)
    by_schedule = [
        {
            p.schedule: p.remaining_s
            for p in predict_schedules(at, candidates(at.settings), cut_beyond=math.inf)
        }
        for at in (outset(EXAMPLE, few, 8), outset(EXAMPLE, many, 8))
    ]
    for schedule in by_schedule[0].keys() & by_schedule[1].keys():
        assert by_schedule[1][schedule] == pytest.approx(MOST_EPOCHS * by_schedule[0][schedule], rel=0.1)


def test_slow_preprocessing_counts_as_the_first_choice_knew_it(sim: Sim) -> None:
    """Alone, every DNN has a preprocessor of its own; two share one here, and wait for it."""
    rates = {"a": {1: 1000.0}, "b": {1: 1000.0}}
    fast = sim(rates, {"a": 5, "b": 5}, slots=(2,), **OPEN)
    slow = sim(
        rates, {"a": 5, "b": 5}, slots=(2,), passes=PassModel(1000, preprocessing_samples_per_s=100.0), **OPEN
    )
    assert slow.makespan_s > 5.0 * fast.makespan_s


def test_a_run_knows_max_epochs_but_not_when_dnns_converge(sim: Sim) -> None:
    run = sim(EXAMPLE, {"a": 3, "b": 30, "c": 4}, slots=(4,), keep_events=True, **OPEN)
    choices = [timed.event for timed in run.events if type(timed.event).__name__ == "ScheduleChosen"]
    assert choices[0].prediction.remaining_s > run.makespan_s
    assert run.outcome == "done"


def test_a_choice_does_not_know_lengths_that_the_decisions_after_it_do_not_know() -> None:
    at, rng = drawn(6), random.Random(6)
    ends = {each.dnn_id: max(1, round(rng.uniform(0.5, 1.0) * each.stop.max_epochs)) for each in at.specs}
    may_end = tuple(replace(each, ends_early=True) for each in at.specs)
    given, said = (
        simulate(each, at.cluster, at.settings, at.rates, at.passes, epochs=ends, costs=at.costs)
        for each in (at.specs, may_end)
    )
    whole = simulate(at.specs, at.cluster, at.settings, at.rates, at.passes, costs=at.costs)
    assert given.paradigms == said.paradigms == ("independent",)
    assert whole.paradigms == ("elastic",)  # with lengths that a run does know


@pytest.mark.parametrize(("num_nodes", "hit_rate"), [(1, 0.0), (1, 1.0), (1, 0.7), (3, 1.0), (3, 0.7)])
def test_skipped_passes_take_as_long_as_simulated_ones_while_caches_fill(
    num_nodes: int, hit_rate: float
) -> None:
    at = decoding(num_nodes, hit_rate, dict.fromkeys(EXAMPLE, 9))
    for found in predict_schedules(at, candidates(at.settings), cut_beyond=math.inf):
        settings = at.settings.under(found.schedule)
        run = simulate(at.specs, at.cluster, settings, at.rates, at.passes, costs=at.costs)
        assert found.remaining_s == pytest.approx(run.makespan_s)


def test_merged_epochs_are_decoded_once() -> None:
    epochs = dict.fromkeys(EXAMPLE, MOST_EPOCHS)
    found = {}
    for hit_rate in (0.0, 1.0):
        at = decoding(1, hit_rate, epochs)
        found[hit_rate] = predict_schedules(at, candidates(at.settings), cut_beyond=math.inf)
    for without, cached in zip(found[0.0], found[1.0], strict=False):
        assert cached.remaining_s < without.remaining_s / 2


def decoding(num_nodes: int, hit_rate: float, epochs: dict[str, int]) -> Outset:
    """An outset with slow preprocessing."""
    at = outset(EXAMPLE, epochs, 2, max_preprocessors=num_nodes)
    passes = replace(at.passes, preprocessing_samples_per_s=100.0, hit_rate=hit_rate)
    return replace(at, cluster=Cluster.uniform(num_nodes, 2), passes=passes)


def test_later_choices_use_the_hit_rate_of_the_first_one() -> None:
    at = decoding(1, 0.7, dict.fromkeys(EXAMPLE, 3))
    ensemble = Ensemble(at.specs, at.cluster, at.settings, at.rates)
    (asked,) = ensemble.handle(Started())
    choice = choose_schedule(Outset.of(ensemble, at.passes, at.costs), asked)
    assert choice.hit_rate == 0.7
    ensemble.handle(choice)
    now = replace(at.passes, hit_rate=0.1)
    assert Outset.of(ensemble, now, at.costs).passes.hit_rate == 0.7
