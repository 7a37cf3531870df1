"""Plans of rounds, and where interrupted DNNs continue."""

from __future__ import annotations

import pytest

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.control import rounds
from hpcbal.control.progress import ScheduleSettings
from hpcbal.errors import InputError
from hpcbal.events.ensemble import Delta, GroupPlan, RoundPlan
from hpcbal.events.history import EpochRecord, Position
from hpcbal.policies.flotilla import FlotillaPlanner
from hpcbal.policies.rates import RateTable

END = 100
PLAN = RoundPlan(3, (GroupPlan("a", (0, 3)),), 5, {"a": Position(5, 7)}, {"a": 2}, 1, {"a": 10.5}, 4, None)


def planner(
    num_slots: int, rates: dict[str, list[float]], preprocessing: float | None = None, **settings: object
) -> rounds.Planner:
    table = RateTable({d: dict(enumerate(row, start=1)) for d, row in rates.items()}, num_slots)
    fields = {"num_positions": END, "delta": Delta(relative=0.1), "max_preprocessors": 9} | settings
    chosen = ScheduleSettings(**fields)  # type: ignore[arg-type]
    flotillas = FlotillaPlanner(tuple(rates), table, num_slots, chosen.delta, chosen.max_slots_per_dnn)
    return rounds.Planner(Cluster.uniform(1, num_slots), chosen, table, lambda: flotillas, preprocessing)


EQUAL = {"a": [100.0, 190.0, 270.0, 340.0], "b": [100.0, 190.0, 270.0, 340.0]}


def test_a_new_round_places_every_dnn_of_the_flotilla() -> None:
    plan = planner(4, EQUAL).new_round(
        ["a", "b"], index=7, first_pass=9, start={"b": Position(9, 5)}, epochs_of={"a": 3, "b": 4}.__getitem__
    )
    assert sorted(slot for group in plan.groups for slot in group.slots) == [0, 1, 2, 3]
    assert plan.start == {"a": Position(9), "b": Position(9, 5)}
    assert (plan.index, plan.first_pass, plan.num_slots, plan.last_pass) == (7, 9, 4, None)
    assert plan.epochs == {"a": 3, "b": 4}
    assert plan.predicted_rate_samples_per_s == {"a": 190.0, "b": 190.0}


def test_all_preprocessors_work_until_their_rate_is_known() -> None:
    assert planner(4, EQUAL).num_preprocessors([190.0]) == 9
    assert planner(4, EQUAL, 100.0).num_preprocessors([190.0, 190.0]) == 2
    assert planner(4, EQUAL, 1.0).num_preprocessors([190.0]) == 9
    assert planner(4, EQUAL, 1e9).num_preprocessors([190.0]) == 1


def test_a_round_ends_when_fewer_than_alpha_of_its_slots_stay_busy() -> None:
    plan = planner(4, EQUAL, alpha=0.5)
    assert not plan.must_regroup({"a": 2}, 4, lambda: ["a"])
    assert plan.must_regroup({"a": 1}, 4, lambda: ["a"])
    assert plan.must_regroup({}, 4, lambda: ["b"])


def test_rounding_does_not_change_alpha_times_m() -> None:
    assert 0.55 * 100 > 55
    many = {f"d{i}": [100.0] for i in range(120)}
    going_on = {f"d{i}": 1 for i in range(55)}
    plan = planner(100, many, alpha=0.55)
    assert not plan.must_regroup(going_on, 100, lambda: list(many))
    assert plan.must_regroup(dict(list(going_on.items())[:54]), 100, lambda: list(many))


def test_a_round_does_not_end_if_regrouping_would_change_nothing() -> None:
    bounded = planner(4, EQUAL, max_slots_per_dnn=1)
    assert not bounded.must_regroup({"a": 1}, 4, lambda: ["a"])
    assert bounded.must_regroup({"a": 1}, 4, lambda: ["a", "b"])
    assert planner(4, EQUAL).must_regroup({"a": 1}, 4, lambda: ["a"])


def test_slots_of_a_round_are_counted_when_it_is_formed() -> None:
    assert rounds.num_slots_of(PLAN) == 4
    assert rounds.num_slots_of(RoundPlan(0, PLAN.groups, 0, PLAN.start, PLAN.epochs, 1, {})) == 2


def test_a_plan_fits_nodes_of_the_same_sizes() -> None:
    made_for = Cluster((Node("x", 2), Node("y", 2)))
    assert rounds.fits(PLAN, made_for, Cluster.uniform(2, 2))
    assert rounds.fits(PLAN, None, Cluster.uniform(1, 4))
    assert not rounds.fits(PLAN, made_for, Cluster.uniform(1, 4))
    assert not rounds.fits(PLAN, None, Cluster.uniform(1, 3))
    assert not rounds.fits(None, None, Cluster.uniform(1, 4))


@pytest.mark.parametrize(
    ("stopped", "last_pass", "expected"),
    [
        (None, None, Position(5)),
        (Position(5, 40), None, Position(5, 40)),
        (Position(5, END), 5, Position(6)),
        (Position(7), 6, Position(7)),
        (Position(6, 40), 5, Position(6, 40)),
        (None, 6, Position(7)),
        (Position(3, END), 3, Position(5)),  # its checkpoint is from before the round
    ],
)
def test_a_dnn_continues_at_the_furthest_certain_point(
    stopped: Position | None, last_pass: int | None, expected: Position
) -> None:
    history = [] if last_pass is None else [EpochRecord(1, last_pass)]
    assert rounds.next_position(5, stopped, history, END) == expected


def test_a_checkpoint_inside_an_earlier_pass_keeps_a_dnn_out_of_the_round() -> None:
    behind = [None, Position(4, END), Position(4, 1), Position(5, 1), Position(6, 1)]
    assert [rounds.has_unfinished_pass_before(5, p, END) for p in behind] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_dnn_ahead_of_the_round_waits_at_the_end_of_its_last_pass() -> None:
    assert rounds.start_of(Position(5), 5, END) == Position(5)
    assert rounds.start_of(Position(7), 5, END) == Position(6, END)
    assert rounds.start_of(Position(7, 3), 5, END) == Position(7, 3)


def test_only_a_begun_and_unfinished_pass_counts_as_inside() -> None:
    inside = [None, Position(1), Position(1, 1), Position(1, END - 1), Position(1, END)]
    assert [rounds.is_inside_pass(p, END) for p in inside] == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 1.1}, "schedule.alpha: got 1.1, allowed: 0 to 1"),
        ({"alpha": float("nan")}, "schedule.alpha: got nan"),
        ({"num_positions": 0}, "num_positions: got 0"),
        ({"max_slots_per_dnn": 0}, "max_slots_per_dnn: got 0"),
        ({"max_profile_slots": 0}, "max_profile_slots: got 0"),
        ({"max_preprocessors": 0}, "max_preprocessors: got 0"),
        ({"max_events": 1}, "max_events: got 1"),
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScheduleSettings(**({"num_positions": END} | fields))  # type: ignore[arg-type]
