"""An update that fails on one rank after the sum ends its DNN, and no checkpoint holds it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pytest

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.training.emulated_backend import EmulatedReplica


@pytest.mark.parametrize("interval_s", [0.0, 1e-9])
@pytest.mark.parametrize("rank_in_group", [0, 1])
def test_the_last_update_of_a_pass_is_not_saved_if_it_failed(
    lab: Any, monkeypatch: pytest.MonkeyPatch, rank_in_group: int, interval_s: float
) -> None:
    """Without validation nothing but the update itself is left to notice it."""
    toys = importlib.import_module("in_process_toys")
    steps_per_pass, apply = 6, EmulatedReplica.apply
    failing: list[int] = []

    def fail(replica: EmulatedReplica, tensors: Sequence[Any]) -> None:
        ranks = sorted(lab._inner.ranks.roles.trainer_ranks)
        is_last = int(replica._iteration) == 2 * steps_per_pass - 1
        if is_last and toys.RANK.number == ranks[rank_in_group]:
            failing.append(toys.RANK.number)
            raise ValueError("half an update")
        apply(replica, tensors)

    monkeypatch.setattr(EmulatedReplica, "apply", fail)
    dnn = {**lab.dnn("c", 3), "batch_size": 10, "stop": {"max_epochs": 3, "monitor": "loss"}}
    lab.use(
        dnns=[dnn],
        data={"dataset": "in_process_toys:points", "validation_fraction": 0},
        checkpoint={"interval_s": interval_s},
    )
    assert lab.run() == 3
    assert failing
    (failed,) = lab.events("dnn-failed")
    assert "half an update" in failed.detail
    state, _ = read_checkpoint(lab.out / "dnns" / "c")
    assert state is not None
    saved = [array for name, array in state.arrays.items() if name.endswith("iteration")]
    assert saved
    assert max(map(int, saved)) < 2 * steps_per_pass
