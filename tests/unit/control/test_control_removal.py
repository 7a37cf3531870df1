"""A GPU that holds its group up is left out, told one event after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control import (
    DnnFailed,
    Finish,
    GroupLeft,
    LeaveOut,
    LeaveRound,
    NextPass,
    RemovalOffered,
    StartRound,
    StopStream,
    SuspendRequested,
    replay,
)

Drive = Callable[..., Any]

# `wide` takes what the others leave; `small` and `other` gain nothing by a second GPU.
RATES = {
    "wide": [62.0, 120.0, 175.0, 230.0],
    "small": [180.0, 180.0, 180.0, 180.0],
    "other": [180.0, 180.0, 180.0, 180.0],
}


def groups_of(instructions: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """GPUs by DNN of the round that starts."""
    (start,) = [told for told in instructions if isinstance(told, StartRound)]
    return {group.dnn_id: group.gpus for group in start.plan.groups}


@pytest.mark.parametrize("paradigm", ["global", "local"])
def test_the_round_goes_on_without_the_gpu_and_moves_nobody(drive: Drive, paradigm: str) -> None:
    run = drive({"small": 9, "wide": 9}, (4,), RATES, paradigm=paradigm, alpha=0.5)
    first = groups_of(run.start())
    assert len(first["wide"]) == 3
    slow = first["wide"][1]
    assert run.send(RemovalOffered("wide", slow)) == [LeaveOut("wide", slow)]
    why = f"wide goes on without GPU {slow}"
    assert run.epoch("small", "wide") == [
        LeaveRound("small", "regroup", why),
        LeaveRound("wide", "regroup", why),
    ]
    told = run.leave("small", "wide")
    assert told[0] == StopStream(0, continues=True)
    assert groups_of(told) == {"small": first["small"], "wide": (first["wide"][0], first["wide"][2])}
    assert told[1].plan.first_pass == 1
    assert told[1].plan.num_gpus == 4
    assert told[1].plan.predicted_rate_samples_per_s == {"small": 180.0, "wide": 120.0}
    assert run.epoch("small", "wide") == [NextPass(("small", "wide"), 2, ("small", "wide"))]


def test_with_local_a_dnn_that_waits_gets_the_gpu_at_once(drive: Drive) -> None:
    run = drive({"wide": 9, "other": 9}, (2,), RATES, paradigm="local", max_gpus_per_dnn=2)
    run.ensemble.state.kept = {"wide": (0, 1)}
    assert groups_of(run.start()) == {"wide": (0, 1)}
    run.send(RemovalOffered("wide", 1))
    run.epoch("wide")
    assert groups_of(run.leave("wide")) == {"wide": (0,), "other": (1,)}


def test_with_global_an_idle_gpu_counts_against_alpha(drive: Drive) -> None:
    """Three of four GPUs are too few, so the next flotilla is formed: GPU 2 is another DNN's then."""
    run = drive({"wide": 9, "small": 1, "other": 9}, (4,), RATES, alpha=0.8)
    run.ensemble.state.kept = {}
    first = groups_of(run.start())
    slow = first["wide"][-1] if "wide" in first else None
    while slow is None or len(first["wide"]) == 1:
        first = groups_of(finish_pass(run))
        slow = first["wide"][-1]
    run.send(RemovalOffered("wide", slow))
    second = groups_of(finish_pass(run))
    assert slow not in second["wide"]


def finish_pass(run: Any) -> list[Any]:
    """Every group finishes its pass, and leaves if it is told to; what the last one's leaving led to."""
    told = run.epoch(*list(run.ensemble.state.groups))
    for instruction in told:
        if isinstance(instruction, LeaveRound):
            told = run.leave(instruction.dnn_id)
    return list(told)


def test_an_offer_counts_once_and_one_at_a_time(drive: Drive) -> None:
    run = drive({"wide": 9}, (4,), RATES)
    assert groups_of(run.start()) == {"wide": (0, 1, 2, 3)}
    assert run.send(RemovalOffered("wide", 9)) == []
    assert run.send(RemovalOffered("wide", 2)) == [LeaveOut("wide", 2)]
    assert run.send(RemovalOffered("wide", 2)) == []
    assert run.send(RemovalOffered("wide", 1)) == []
    run.epoch("wide")
    assert run.send(RemovalOffered("wide", 1)) == []  # told to leave
    assert groups_of(run.leave("wide")) == {"wide": (0, 1, 3)}
    assert run.send(RemovalOffered("wide", 1)) == [LeaveOut("wide", 1)]
    assert run.ensemble.state.left_out == {"wide": (2, 1)}


def test_a_group_never_shrinks_below_one(drive: Drive) -> None:
    run = drive({"wide": 9}, (2,), RATES)
    run.start()
    run.send(RemovalOffered("wide", 0))
    run.epoch("wide")
    assert groups_of(run.leave("wide")) == {"wide": (1,)}
    assert run.send(RemovalOffered("wide", 1)) == []


def test_no_round_is_ended_again_and_again_for_a_gpu_that_nobody_can_use(drive: Drive) -> None:
    """Alg. 2 wants all four GPUs for `wide` in every flotilla, and three are below alpha."""
    run = drive({"wide": 9}, (4,), RATES, alpha=1.0)
    run.start()
    run.send(RemovalOffered("wide", 3))
    run.epoch("wide")
    run.leave("wide")
    for pass_index in range(2, 9):
        assert run.epoch("wide") == [NextPass(("wide",), pass_index, ("wide",))]


def test_offers_of_those_who_go_change_nothing(drive: Drive) -> None:
    run = drive({"wide": 1, "small": 9}, (4,), RATES, alpha=0.0)
    run.start()
    offer = RemovalOffered("wide", run.ensemble.state.groups["wide"].gpus[0])
    run.send(DnnFailed("wide", "nan", "loss is NaN"))
    assert run.send(offer) == []
    run.send(GroupLeft("wide"))
    assert run.send(offer) == []
    run.send(SuspendRequested("walltime"))
    assert run.send(RemovalOffered("small", 0)) == []
    run.epoch("small")
    assert run.leave("small")[-1] == Finish("suspended")
    assert run.send(offer) == []
    assert run.ensemble.state.left_out == {}


def test_a_suspension_keeps_in_mind_what_is_left_out(drive: Drive) -> None:
    """The rest of the pass is trained without it, as the groups are formed anew in any case."""
    run = drive({"wide": 9}, (4,), RATES)
    run.start()
    run.send(RemovalOffered("wide", 1))
    run.send(SuspendRequested("walltime"))
    run.epoch("wide")
    run.leave("wide")
    resume = run.ensemble.resume_state()
    assert resume.left_out == {"wide": (1,)}
    again = drive({"wide": 9}, (4,), RATES, resume)
    assert groups_of(again.start()) == {"wide": (0, 2, 3)}
    elsewhere = drive({"wide": 9}, (3, 1), RATES, resume)  # GPU 1 is another one there
    assert groups_of(elsewhere.start()) == {"wide": (0, 1, 2, 3)}
    assert elsewhere.ensemble.resume_state().left_out == {}


def test_a_suspension_between_the_two_rounds_changes_nothing(drive: Drive) -> None:
    run = drive({"wide": 9, "small": 9}, (4,), RATES, alpha=0.5)
    first = groups_of(run.start())
    slow = first["wide"][0]
    run.send(RemovalOffered("wide", slow))
    run.epoch("wide", "small")
    run.send(SuspendRequested("walltime"))
    assert run.leave("wide", "small")[-1] == Finish("suspended")
    again = drive({"wide": 9, "small": 9}, (4,), RATES, run.ensemble.resume_state(), alpha=0.5)
    assert groups_of(again.start()) == {**first, "wide": first["wide"][1:]}


def test_a_log_with_offers_replays_to_the_same_state(drive: Drive) -> None:
    run = drive({"wide": 9, "small": 2}, (2, 2), RATES, alpha=0.5)
    run.start()
    run.send(RemovalOffered("wide", run.ensemble.state.groups["wide"].gpus[0]))
    finish_pass(run)
    finish_pass(run)
    assert replay(*run.ensemble.origin, run.ensemble.events).state == run.ensemble.state
    assert run.ensemble.origin[1] == Cluster(run.ensemble.origin[1].nodes)
    assert run.ensemble.snapshot()["dnns"]["wide"]["left_out"]
