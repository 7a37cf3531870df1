"""Whole runs whose classes are balanced: a stopped one ends with the same weights, on any slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.errors import OutputError


def use(lab: Any, output: str, num_slots: int = 2, **sections: Any) -> None:
    data = {"dataset": "in_process_toys:uneven", "max_bad_fraction": 0.1, "sampling": "balanced"}
    lab.use("global", output, num_slots, data=data, **{"dnns": lab.dnns(hook="act"), **sections})


@pytest.mark.parametrize("sampling", ["balanced", "random"])
def test_rare_classes_train_as_often_as_others(lab: Any, hooks: Any, sampling: str) -> None:
    import in_process_toys

    hooks["act"] = lambda step: None
    use(lab, sampling, dnns=lab.dnns(hook="act")[:1])
    if sampling == "random":
        data = {"dataset": "in_process_toys:uneven"}
        lab.use("global", sampling, 2, data=data, dnns=lab.dnns(hook="act")[:1])
    in_process_toys.READS.clear()
    assert lab.run() == 0
    reads = np.bincount(in_process_toys.READS, minlength=60)
    by_class = [reads[in_process_toys.uneven().labels == each].sum() for each in range(3)]
    is_even = max(by_class) < 1.5 * min(by_class)
    assert is_even == (sampling == "balanced"), by_class


def test_a_stopped_run_goes_on_to_the_same_weights(lab: Any, hooks: Any) -> None:
    hooks["act"] = lambda step: None
    use(lab, "whole")
    assert lab.run() == 0
    wanted = lab.outcome()
    use(lab, "stopped")
    lab.stop_at(14, rank=2)
    hooks["act"] = lambda step: None
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)


def test_another_sampling_is_refused_on_resume(lab: Any, hooks: Any) -> None:
    hooks["act"] = lambda step: None
    use(lab, "kept")
    lab.stop_at(14, rank=2)
    lab.use("global", "kept", 2, data={"dataset": "in_process_toys:uneven"}, dnns=lab.dnns(hook="act"))
    with pytest.raises(OutputError, match=r"data\.sampling: was balanced, is random"):
        lab.run()
