"""Members of folds train with rounds and without as they would alone, whatever interrupts them."""

from __future__ import annotations

from typing import Any

import pytest

NAMES = ("a-fold1", "a-fold2", "a-fold3")


def backend_of(*names: str) -> dict[str, Any]:
    rates = {name: {1: 4e5, 2: 7.8e5} for name in names}
    return {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": rates}


def members(lab: Any, **args: Any) -> list[dict[str, Any]]:
    return [{**lab.dnn(name, 2, **args), "k_fold": 3, "fold": number} for number, name in enumerate(NAMES, 1)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Hold the outcome of members in runs of their own; the first test fills it."""
    return {}


@pytest.mark.parametrize("paradigm", ["global", "elastic"])
def test_members_of_one_run_are_those_of_runs_of_their_own(
    lab: Any, alone: dict[str, Any], paradigm: str
) -> None:
    """Also beside a DNN without folds, after a stop inside an epoch and a death."""
    if not alone:
        for dnn in members(lab):
            lab.use("global", dnn["name"], dnns=[dnn], backend=backend_of(dnn["name"]))
            assert lab.run() == 0
            alone |= lab.outcome()
    dnns = [*members(lab, hook="act"), lab.dnn("b", 2, hook="act")]
    # A slot for each: in rounds, those that wait for one would begin with a later pass of the stream.
    lab.use(paradigm, num_slots=4, dnns=dnns, backend=backend_of(*NAMES, "b"))
    lab.stop_at(3, rank=1)
    lab.kill_at(4)
    assert lab.run() == 0
    assert lab.states() == dict.fromkeys((*NAMES, "b"), ("done", 2))
    found = lab.outcome()
    lab.assert_same({name: found[name] for name in NAMES}, alone)
