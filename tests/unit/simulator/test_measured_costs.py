"""The costs of a run are measured from its ledger."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_lines import a, plan_of

from hpcbal.events.ensemble import EpochDone, StartRound
from hpcbal.events.line import Line
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.measured_costs import measured_costs
from hpcbal.simulator.record import SimulatedRun
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT

TimedLine = tuple[float, Line]


def started(time_s: float, groups: dict[str, tuple[int, ...]], **epochs: int) -> TimedLine:
    return time_s, StartRound(plan_of(groups, epochs))


def done(time_s: float, dnn: str, seconds: float) -> TimedLine:
    return time_s, a(EpochDone, dnn_id=dnn, seconds=seconds)


def entry(time_s: float, event: str, **fields: Any) -> TimedLine:
    return time_s, a(LINE_BY_EVENT[event], **fields)


def test_new_moved_and_staying_dnns_are_distinguished() -> None:
    lines = [
        entry(0.0, "run-started"),
        started(1.0, {"a": (0,), "b": (1,)}),
        done(21.0, "a", 10.0),  # began 10 s after the round
        done(23.0, "b", 10.0),  # 12 s
        done(31.0, "a", 10.0),  # a later pass shows nothing
        entry(32.0, "leave-round", dnn_id="a"),
        entry(32.0, "leave-round", dnn_id="b"),
        entry(33.0, "group-left", dnn_id="a"),
        entry(35.0, "group-left", dnn_id="b"),
        entry(35.0, "round-ended"),
        started(35.5, {"a": (0,), "b": (2, 3)}, a=2, b=1),
        done(46.5, "a", 10.0),  # stayed: 1 s
        done(49.5, "b", 10.0),  # moved: 4 s
    ]
    costs = measured_costs(lines)
    assert costs == Costs(form_s=1.0, build_s=10.0, load_s=3.0, checkpoint_s=2.0, scheduling_s=0.5)


def test_a_restart_forgets_what_was_in_memory() -> None:
    lines = [
        started(0.0, {"a": (0,)}),
        done(12.0, "a", 10.0),
        entry(50.0, "run-started"),
        started(51.0, {"a": (0,)}, a=1),
        done(66.0, "a", 10.0),  # loaded, although on the same slot: 5 s
    ]
    costs = measured_costs(lines)
    assert costs is not None
    assert (costs.form_s, costs.build_s, costs.load_s) == pytest.approx((2.0, 0.0, 3.0))


@pytest.mark.parametrize("lines", [[], [entry(0.0, "run-started"), started(1.0, {"a": (0,)})]])
def test_without_a_report_nothing_is_known(lines: list[TimedLine]) -> None:
    assert measured_costs(lines) is None


def lines_of_run(run: SimulatedRun) -> list[TimedLine]:
    """Return the lines that rank 0 would have written, as far as the simulator keeps events."""
    rounds: list[TimedLine] = [(each.start_s, StartRound(each.plan)) for each in run.rounds]
    epochs: list[TimedLine] = [
        (timed.time_s, timed.event) for timed in run.events if isinstance(timed.event, EpochDone)
    ]
    return sorted([*epochs, *rounds], key=lambda timed: timed[0])


def test_the_costs_of_a_simulated_run_are_found_in_its_ledger(sim: Any) -> None:
    costs = Costs(form_s=1.0, build_s=10.0, load_s=3.0)
    rates = {"a": {1: 100.0, 2: 190.0}, "b": {1: 100.0, 2: 190.0}}
    run = sim(rates, {"a": 6, "b": 2}, slots=(2,), costs=costs, keep_events=True)
    assert len(run.rounds) == 2, "b is done, and a moves to both slots"
    found = measured_costs(lines_of_run(run))
    assert found is not None
    assert (found.form_s, found.build_s, found.load_s) == pytest.approx((4.0, 7.0, 0.0))
