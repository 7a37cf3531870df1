"""Whole runs on mixed samples: the same on any number of slots, after a stop, and with broken samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

MIXED = [{"mixup": {"alpha": 1.0, "p": 0.8}}, {"normalize": {"mean": 0.5, "std": 0.25}}]


def use(lab: Any, output: str, paradigm: str = "global", num_slots: int = 2, **sections: Any) -> None:
    lab.use(
        paradigm,
        output,
        num_slots,
        data={"dataset": "in_process_toys:pixels", "args": {"broken": 2}, "max_bad_fraction": 0.1},
        preprocessing=MIXED,
        **{"dnns": lab.dnns(hook="act"), **sections},
    )


def assert_close(got: Any, wanted: Any) -> None:
    assert got.keys() == wanted.keys()
    for name, (history, arrays) in wanted.items():
        assert len(got[name][0]) == len(history)
        for key, array in arrays.items():
            np.testing.assert_allclose(got[name][1][key], array, err_msg=key, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("paradigm", ["global", "elastic", "independent"])
def test_a_stopped_run_goes_on_to_the_same_weights(lab: Any, hooks: Any, paradigm: str) -> None:
    hooks["act"] = lambda step: None
    use(lab, "whole", paradigm)
    assert lab.run() == 0
    wanted = lab.outcome()
    use(lab, "stopped", paradigm)
    lab.stop_at(14, rank=2)
    hooks["act"] = lambda step: None
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)


def test_weights_do_not_depend_on_how_steps_are_split_nor_where_samples_are_normalized(
    lab: Any, hooks: Any
) -> None:
    hooks["act"] = lambda step: None
    outcomes = []
    alone = lab.dnns(hook="act")[:1]  # others would take slots, and so move its passes
    for number, (num_slots, on_device) in enumerate([(1, True), (3, True), (2, False)]):
        dataplane = {"block_samples": 8, "on_device": on_device}
        use(lab, f"{number}", "global", num_slots, dataplane=dataplane, dnns=alone)
        assert lab.run() == 0
        assert lab.sample_dtype == ("uint8" if on_device else "float32")
        outcomes.append(lab.outcome())
    assert_close(outcomes[1], outcomes[0])
    assert_close(outcomes[2], outcomes[0])
    for history, _ in outcomes[0].values():
        assert history[-1][2]["loss"] < history[0][2]["loss"]
        assert 0 <= history[-1][2]["val_accuracy"] <= 1
