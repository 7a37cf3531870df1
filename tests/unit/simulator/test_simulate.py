"""Runs in virtual time whose length can be calculated by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import replay
from hpcbal.control.paradigms import PARADIGM_NAMES
from hpcbal.control.progress import DnnProgress, ResumeState, ScheduleSettings
from hpcbal.errors import InputError, PolicyError
from hpcbal.events.ensemble import EpochDone, GroupLeft, RateMeasured, Started
from hpcbal.events.history import EpochRecord, Position
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.pruning.rules import Asha
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import predict, simulate

Sim = Callable[..., SimulatedRun]


def records(count: int) -> tuple[EpochRecord, ...]:
    return tuple(EpochRecord(i + 1, i, {"val_accuracy": 0.5}) for i in range(count))


def test_one_dnn_alone_takes_its_passes(sim: Sim) -> None:
    result = sim({"a": 100.0}, {"a": 3}, slots=(1,))
    assert result.makespan_s == pytest.approx(30.0)
    assert result.lower_bound_s == pytest.approx(30.0)
    assert (result.outcome, len(result.rounds)) == ("done", 1)
    assert (result.dnns[0].running_s, result.dnns[0].slot_seconds) == pytest.approx((30.0, 30.0))


def test_groups_of_a_round_go_at_the_pace_of_the_slowest(sim: Sim) -> None:
    result = sim({"a": 100.0, "b": 90.0}, {"a": 4, "b": 4}, slots=(2,))
    assert result.makespan_s == pytest.approx(4 * 1000 / 90.0)
    waited = result.slot_seconds("wait")
    assert sorted(waited) == pytest.approx([0.0, 4 * (1000 / 90.0 - 10.0)])
    assert result.slot_seconds("train").sum() == pytest.approx(4 * (1000 / 90.0 + 10.0))


def test_independent_dnns_do_not_wait_for_each_other(sim: Sim) -> None:
    result = sim({"a": 100.0, "b": 50.0}, {"a": 4, "b": 4}, slots=(2,), paradigm="independent")
    assert result.makespan_s == pytest.approx(80.0)
    assert result.slot_seconds("wait").sum() == 0.0
    assert sorted(result.idle_seconds()) == pytest.approx([0.0, 40.0])
    assert [dnn.end_s for dnn in result.dnns] == pytest.approx([40.0, 80.0])


def test_the_next_independent_dnn_starts_when_a_slot_is_free(sim: Sim) -> None:
    result = sim(dict.fromkeys("abcd", 100.0), dict.fromkeys("abcd", 2), slots=(2,), paradigm="independent")
    assert result.makespan_s == pytest.approx(40.0)
    assert sorted(dnn.start_s for dnn in result.dnns) == pytest.approx([0.0, 0.0, 20.0, 20.0])


def test_an_independent_dnn_that_is_long_does_not_start_last(sim: Sim) -> None:
    epochs = dict.fromkeys("abcdefgh", 1) | {"long": 4}
    result = sim(dict.fromkeys(epochs, 100.0), epochs, slots=(3,), paradigm="independent")
    assert result.makespan_s == pytest.approx(40.0)  # as long as the longest one


def test_independent_preprocessing_limits_each_dnn_alone(sim: Sim) -> None:
    passes = PassModel(1000, preprocessing_samples_per_s=50.0)
    result = sim({"a": 100.0, "b": 25.0}, {"a": 1, "b": 1}, slots=(2,), paradigm="independent", passes=passes)
    assert [dnn.end_s for dnn in result.dnns] == pytest.approx([20.0, 40.0])


def test_homogeneous_subsets_follow_each_other(sim: Sim) -> None:
    epochs = dict(zip("abcd", (1, 2, 3, 4), strict=True))
    result = sim(dict.fromkeys("abcd", 100.0), epochs, slots=(2,), paradigm="homogeneous")
    assert len(result.rounds) == 2
    longest = [max(epochs[name] for name in record.running_s) for record in result.rounds]
    assert result.makespan_s == pytest.approx(10.0 * sum(longest))


def test_local_fills_a_released_slot_at_once(sim: Sim) -> None:
    rates, epochs = dict.fromkeys("abc", 100.0), {"a": 4, "b": 1, "c": 1}
    result = sim(rates, epochs, slots=(2,), paradigm="local", alpha=0.1)
    assert [sorted(record.running_s) for record in result.rounds][:2] == [["a", "b"], ["a", "c"]]
    assert result.makespan_s == pytest.approx(40.0)


def test_costs_are_added_where_they_arise(sim: Sim) -> None:
    costs = Costs(build_s=5.0, load_s=3.0, form_s=2.0, checkpoint_s=1.0, pass_s=0.5, scheduling_s=0.25)
    result = sim({"a": 100.0}, {"a": 2}, slots=(1,), costs=costs)
    assert result.makespan_s == pytest.approx(0.25 + 2.0 + 5.0 + 2 * 10.5 + 1.0)
    assert result.scheduling_s == 0.25
    assert result.checkpointing_s() == pytest.approx(0.25 + 2.0 + 5.0 + 1.0)


def test_a_dnn_that_stays_on_its_slots_is_neither_built_nor_loaded_again(sim: Sim) -> None:
    rates, epochs = dict.fromkeys("abc", 100.0), {"a": 3, "b": 1, "c": 1}
    result = sim(rates, epochs, slots=(2,), paradigm="local", costs=Costs(build_s=5.0, load_s=3.0))
    starts = [(span.dnn_id, span.seconds) for span in result.spans if span.kind == "start"]
    assert sorted(starts) == [("a", 5.0), ("b", 5.0), ("c", 5.0)]


def test_a_dnn_that_moves_is_loaded(sim: Sim) -> None:
    rates = {"a": {1: 100.0, 2: 190.0}, "b": {1: 100.0, 2: 190.0}}
    result = sim(rates, {"a": 1, "b": 3}, slots=(2,), costs=Costs(build_s=5.0, load_s=3.0, checkpoint_s=1.0))
    assert [(span.dnn_id, span.seconds) for span in result.spans if span.kind == "start"] == [
        ("a", 5.0),
        ("b", 5.0),
        ("b", 3.0),
    ]
    assert result.makespan_s == pytest.approx(5.0 + 10.0 + 1.0 + 3.0 + 2 * 1000 / 190.0 + 1.0)


def test_the_start_time_of_a_dnn_overrides_that_of_all_dnns(sim: Sim) -> None:
    rates = {"a": {1: 100.0, 2: 190.0}, "b": {1: 100.0, 2: 190.0}}
    costs = Costs(build_s=5.0, load_s=3.0, start_s={"b": 7.0})
    result = sim(rates, {"a": 1, "b": 3}, slots=(2,), costs=costs)
    starts = [(span.dnn_id, span.seconds) for span in result.spans if span.kind == "start"]
    assert starts == [("a", 5.0), ("b", 7.0), ("b", 7.0)]
    with pytest.raises(InputError, match=r"costs\.start_s\.a: got -1\.0, allowed: seconds, 0 or more"):
        Costs(start_s={"a": -1.0})


def test_missing_rates_are_profiled_in_waves(sim: Sim) -> None:
    known, costs = RateTable({}, 2), Costs(profile_start_s=1.0)
    result = sim(
        {"a": 100.0, "b": 50.0},
        {"a": 1, "b": 1},
        slots=(2,),
        passes=PassModel(1000, profile_batches=10),
        known=known,
        profile=True,
        costs=costs,
        keep_events=True,
    )
    measured = [timed for timed in result.events if isinstance(timed.event, RateMeasured)]
    assert [(t.event.dnn_id, t.event.num_slots) for t in measured[:2]] == [("a", 1), ("b", 1)]  # type: ignore[attr-defined]
    assert [t.time_s for t in measured[:2]] == pytest.approx([1.0 + 80 / 50.0] * 2)
    assert result.profiling_s == pytest.approx(measured[-1].time_s)
    assert result.rounds[0].start_s == result.profiling_s


def test_events_are_those_of_a_real_run(sim: Sim) -> None:
    result = sim({"a": 100.0}, {"a": 2}, slots=(1,), keep_events=True)
    assert [type(timed.event).__name__ for timed in result.events] == [
        "Started",
        "EpochDone",
        "EpochDone",
        "CheckpointWritten",
        "GroupLeft",
    ]
    assert result.num_events == 5
    assert result.events[0].event == Started()
    done = result.events[1].event
    assert isinstance(done, EpochDone)
    assert (done.seconds, done.busy_s) == pytest.approx((10.0, 10.0))
    assert result.events[-1].event == GroupLeft("a")


@pytest.mark.parametrize("paradigm", PARADIGM_NAMES)
def test_the_same_run_twice_is_the_same_run(paradigm: str, sim: Sim) -> None:
    rates = {f"d{i}": 20.0 + 7.0 * i for i in range(12)}
    epochs = {name: 1 + i % 5 for i, name in enumerate(rates)}
    first, again = (sim(rates, epochs, paradigm=paradigm, seed=3, keep_events=True) for _ in range(2))
    assert first.spans == again.spans
    assert repr(first.events) == repr(again.events)


def passes_of(run: SimulatedRun) -> dict[str, list[int]]:
    """The passes that each DNN trained, in order."""
    passes: dict[str, list[int]] = {}
    for timed in run.events:
        if isinstance(timed.event, EpochDone):
            passes.setdefault(timed.event.dnn_id, []).append(timed.event.pass_index)
    return passes


@pytest.mark.parametrize(("paradigm", "is_same"), [("global", False), ("homogeneous", True)])
def test_rates_that_differ_a_little_can_change_the_passes_of_a_dnn(
    paradigm: str, is_same: bool, sim: Sim
) -> None:
    epochs, others = dict.fromkeys("abc", 3), {"slots": (2,), "paradigm": paradigm, "keep_events": True}
    first = sim({"a": 100.0, "b": 99.0, "c": 98.0}, epochs, **others)
    again = sim({"a": 100.0, "b": 98.0, "c": 99.0}, epochs, **others)  # as measured by another run
    assert (passes_of(first) == passes_of(again)) is is_same


def intervals_of(run: SimulatedRun, slot: int) -> list[tuple[float, float, str, str]]:
    """(start_s, end_s, kind, DNN) of one slot in order, with `idle` and DNN "" in between."""
    result: list[tuple[float, float, str, str]] = []
    now = 0.0
    for span in sorted((s for s in run.spans if slot in s.slots), key=lambda span: span.start_s):
        if span.start_s > now:
            result.append((now, span.start_s, "idle", ""))
        result.append((span.start_s, span.end_s, span.kind, span.dnn_id))
        now = span.end_s
    if now < run.makespan_s:
        result.append((now, run.makespan_s, "idle", ""))
    return result


@pytest.mark.parametrize("paradigm", PARADIGM_NAMES)
def test_a_slot_does_one_thing_at_a_time(paradigm: str, sim: Sim) -> None:
    rates = {f"d{i}": 20.0 + 7.0 * i for i in range(12)}
    costs = Costs(build_s=1.0, load_s=0.5, checkpoint_s=0.25, snapshot_s=0.125, pass_s=0.1)
    result = sim(rates, {name: 1 + i % 5 for i, name in enumerate(rates)}, paradigm=paradigm, costs=costs)
    for slot in range(4):
        intervals = intervals_of(result, slot)
        assert intervals[0][0] == 0.0
        assert intervals[-1][1] == pytest.approx(result.makespan_s)
        for (_, end, _, _), (start, _, _, _) in itertools.pairwise(intervals):
            assert start == pytest.approx(end)
        idle = sum(end - start for start, end, kind, _ in intervals if kind == "idle")
        assert idle == pytest.approx(result.idle_seconds()[slot])


def test_a_resumed_run_does_the_rest(sim: Sim) -> None:
    done = DnnProgress(state="done", epochs=2, history=records(2))  # type: ignore[arg-type]
    inside = DnnProgress(epochs=2, history=records(2), position=Position(2, 600))
    resume = ResumeState({"a": done, "b": inside}, next_pass=3)
    result = sim({"a": 100.0, "b": 100.0}, {"a": 2, "b": 4}, slots=(1,), resume=resume)
    assert result.makespan_s == pytest.approx(4.0 + 10.0)
    assert [dnn.dnn_id for dnn in result.dnns] == ["b"]
    assert result.lower_bound_s <= 20.0


def test_an_interrupted_round_continues_where_its_dnns_stopped() -> None:
    """One DNN behind, one ahead, as after a crash: the one ahead waits for the other."""
    specs = [DnnSpec(name, 8, StopRule(max_epochs=3)) for name in "ab"]
    cluster, passes = Cluster.uniform(1, 2), PassModel(100)
    settings = ScheduleSettings(num_positions=100, profile=False)
    rates = RateTable({"a": {1: 10.0}, "b": {1: 10.0}}, 2)
    plan = simulate(specs, cluster, settings, rates, passes).rounds[0].plan
    resume = ResumeState(
        {"a": DnnProgress(epochs=2, history=records(2)), "b": DnnProgress(epochs=1, history=records(1))},
        next_pass=3,
        next_round_index=1,
        interrupted=plan,
    )
    result = simulate(specs, cluster, settings, rates, passes, resume=resume)
    assert result.outcome == "done"
    assert result.makespan_s == pytest.approx(20.0)


def test_a_dnn_ahead_continues_alone_when_those_behind_have_left() -> None:
    specs = [DnnSpec("a", 8, StopRule(max_epochs=3)), DnnSpec("b", 8, StopRule(max_epochs=2))]
    cluster, passes = Cluster.uniform(1, 2), PassModel(100)
    settings = ScheduleSettings(num_positions=100, profile=False)
    rates = RateTable({"a": {1: 10.0}, "b": {1: 10.0}}, 2)
    plan = simulate(specs, cluster, settings, rates, passes).rounds[0].plan
    inside = DnnProgress(epochs=2, history=records(2), position=Position(2, 50))
    resume = ResumeState(
        {"a": inside, "b": DnnProgress(epochs=1, history=records(1))},
        next_pass=3,
        next_round_index=1,
        interrupted=plan,
    )
    result = simulate(specs, cluster, settings, rates, passes, resume=resume)
    assert result.outcome == "done"
    assert [dnn.end_s for dnn in result.dnns] == pytest.approx([15.0, 10.0])


def test_a_prediction_is_an_upper_bound_by_max_epochs() -> None:
    specs = [DnnSpec("a", 8, StopRule(max_epochs=5, patience=1)), DnnSpec("b", 8, StopRule(max_epochs=2))]
    args: Any = (specs, Cluster.uniform(1, 2), ScheduleSettings(num_positions=100, profile=False))
    found = predict(*args, RateTable({"a": {1: 10.0, 2: 10.0}, "b": {1: 10.0}}, 2), PassModel(100))
    assert found is not None
    assert found.remaining_s == pytest.approx(50.0)
    assert found.done_s == pytest.approx({"a": 50.0, "b": 20.0})
    assert predict(*args, RateTable({"a": {1: 10.0}}, 2), PassModel(100)) is None


@pytest.mark.parametrize("paradigm", ["global", "local", "homogeneous"])
def test_a_prediction_from_any_round_is_what_is_left_of_the_whole(paradigm: str) -> None:
    rates = RateTable({f"d{i}": {1: 20.0 + 9.0 * i, 2: 38.0 + 17.0 * i} for i in range(10)}, 2)
    specs = [DnnSpec(d, 8, StopRule(max_epochs=1 + i % 4)) for i, d in enumerate(rates.measured)]
    cluster, passes = Cluster.uniform(2, 2), PassModel(100, 20)
    settings = ScheduleSettings(passes.num_positions, profile=False, paradigm=paradigm)
    whole = simulate(specs, cluster, settings, rates, passes, keep_events=True)
    assert len(whole.rounds) > 2
    for record in whole.rounds:
        events = [timed.event for timed in whole.events if timed.time_s <= record.start_s]
        then = replay(specs, cluster, settings, rates, None, events).resume_state()
        left = predict(specs, cluster, settings, rates, passes, resume=then)
        assert left is not None
        assert record.start_s + left.remaining_s == pytest.approx(whole.makespan_s)


def test_beside_a_pruning_rule_a_prediction_counts_one_slot_for_each_dnn_at_its_own_pace() -> None:
    specs = [DnnSpec(name, 8, StopRule(max_epochs=6)) for name in "ab"]
    rates = RateTable({name: {1: 10.0, 2: 19.0, 4: 35.0} for name in "ab"}, 4)
    cluster, passes = Cluster.uniform(1, 4), PassModel(num_train=100)
    settings = ScheduleSettings(100, paradigm="elastic", profile=False)
    free = predict(specs, cluster, settings, rates, passes)
    pruned = predict(specs, cluster, replace(settings, prune=Asha()), rates, passes)
    assert free is not None
    assert pruned is not None
    assert pruned.remaining_s == pytest.approx(60.0)
    assert free.remaining_s < 35.0
    assert (free.num_rounds, pruned.num_rounds) == (0, 0)


def test_an_ensemble_that_is_done_takes_no_time(sim: Sim) -> None:
    done = DnnProgress(state="done", epochs=1, history=records(1))  # type: ignore[arg-type]
    result = sim({"a": 10.0}, {"a": 1}, resume=ResumeState({"a": done}))
    assert (result.makespan_s, result.lower_bound_s, result.dnns) == (0.0, 0.0, ())


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        ({"a": 0}, "epochs of a: got 0, allowed: 1 to its max_epochs 50"),
        ({"a": 51}, "epochs of a: got 51"),
        ({"z": 1}, "epochs: the ensemble has no DNN z"),
    ],
)
def test_wrong_epochs_are_refused(epochs: dict[str, int], message: str, sim: Sim) -> None:
    with pytest.raises(InputError, match=message):
        sim({"a": 100.0}, epochs)


def test_a_dnn_without_a_rate_is_named(sim: Sim) -> None:
    with pytest.raises(PolicyError, match="no rate for 'a' on 1 slot is known"):
        sim({"a": {2: 100.0}}, {"a": 1}, paradigm="independent")


# ---- caches ------------------------------------------------------------------------------------

DECODING = PassModel(1000, preprocessing_samples_per_s=10.0, hit_rate=1.0)
"""One rank makes a pass in 100 s, or finds it in the cache; a DNN of rate 100 trains it in 10 s."""


def test_a_round_waits_for_decoding_in_its_first_pass_only(sim: Sim) -> None:
    result = sim({"a": 100.0}, {"a": 4}, slots=(1,), passes=DECODING)
    assert result.makespan_s == pytest.approx(100.0 + 3 * 10.0)
    half = replace(DECODING, hit_rate=0.5)
    assert sim({"a": 100.0}, {"a": 4}, slots=(1,), passes=half).makespan_s == pytest.approx(100.0 + 3 * 50.0)


def test_rounds_decode_once_for_all_nodes(sim: Sim) -> None:
    rates, epochs = {"a": 100.0, "b": 100.0}, {"a": 4, "b": 4}
    for makers in (1, 2, 3):
        result = sim(rates, epochs, slots=(1, 1), passes=DECODING, max_preprocessors=makers)
        assert result.makespan_s == pytest.approx(100.0 / makers + 3 * 10.0)


def test_the_second_round_finds_the_samples_of_the_first(sim: Sim) -> None:
    result = sim({"a": 100.0, "b": 100.0}, {"a": 2, "b": 2}, slots=(1,), passes=DECODING)
    assert len(result.rounds) == 2
    assert result.makespan_s == pytest.approx(100.0 + 3 * 10.0)


@pytest.mark.parametrize("paradigm", ["elastic", "independent"])
def test_without_rounds_all_of_a_node_fill_its_cache_together(sim: Sim, paradigm: str) -> None:
    options = {"paradigm": paradigm, "max_preprocessors": 2, "max_slots_per_dnn": 1}
    rates = {"a": 100.0, "b": 100.0, "c": 100.0}
    result = sim(rates, {"a": 3, "b": 1, "c": 1}, slots=(2,), passes=DECODING, **options)
    first = 100.0 / (2 + 2)
    assert result.makespan_s == pytest.approx(first + 2 * 10.0)
    end_s = {dnn.dnn_id: dnn.end_s for dnn in result.dnns}
    assert sorted(end_s.values()) == pytest.approx([first, first + 10.0, first + 20.0])


def test_without_rounds_all_nodes_fill_their_caches_together(sim: Sim) -> None:
    options = {"paradigm": "independent", "max_preprocessors": 2}
    result = sim({"a": 100.0, "b": 50.0}, {"a": 2, "b": 2}, slots=(1, 1), passes=DECODING, **options)
    first = 100.0 / (2 + 2)
    ends_s = {"a": first + 10.0, "b": first + 20.0}
    assert {dnn.dnn_id: dnn.end_s for dnn in result.dnns} == pytest.approx(ends_s)


def test_a_group_without_rounds_makes_its_samples_on_all_its_slots(sim: Sim) -> None:
    passes = PassModel(1000, preprocessing_samples_per_s=10.0)
    rates = {"a": {1: 100.0, 2: 200.0}}
    result = sim(rates, {"a": 2}, slots=(2,), passes=passes, paradigm="elastic")
    assert result.makespan_s == pytest.approx(2 * 50.0)
