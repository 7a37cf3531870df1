"""Bytes in the ring, numbers on the trainers: whole runs learn the same wherever samples are normalized."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

PREPROCESSING = [{"normalize": {"mean": 0.5, "std": [0.2, 0.3, 0.1, 0.2, 0.4, 0.2]}}]


def use(lab: Any, output: str, paradigm: str = "global", **dataplane: Any) -> None:
    lab.use(
        paradigm,
        output,
        data={"dataset": "in_process_toys:pixels", "args": {"broken": 2}, "max_bad_fraction": 0.1},
        preprocessing=PREPROCESSING,
        dataplane={"block_samples": 8, **dataplane},
        dnns=lab.dnns(hook="act"),
    )


def assert_close(got: Any, wanted: Any) -> None:
    assert got.keys() == wanted.keys()
    for name, (_, arrays) in wanted.items():
        for key, array in arrays.items():
            np.testing.assert_allclose(got[name][1][key], array, err_msg=key, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("paradigm", ["global", "independent"])
def test_weights_and_broken_samples_are_the_same(lab: Any, hooks: Any, paradigm: str) -> None:
    hooks["act"] = lambda step: None
    outcomes, broken = {}, {}
    for on_device in (True, False):
        use(lab, f"{on_device}", paradigm, on_device=on_device)
        assert lab.run() == 0
        assert lab.sample_dtype == ("uint8" if on_device else "float32")
        outcomes[on_device] = lab.outcome()
        broken[on_device] = sorted({line.sample_id for line in lab.events("bad-sample")})
    assert_close(outcomes[True], outcomes[False])
    assert broken[True] == broken[False] == [0, 1]


def test_a_run_from_before_goes_on_with_bytes(lab: Any, hooks: Any) -> None:
    hooks["act"] = lambda step: None
    use(lab, "whole", on_device=False)
    assert lab.run() == 0
    wanted = lab.outcome()
    use(lab, "stopped", on_device=False)
    lab.stop_at(14, rank=1)
    config = lab.out / "config.yaml"
    config.write_text(config.read_text().replace("  on_device: false\n", ""))
    hooks["act"] = lambda step: None
    use(lab, "stopped")
    assert lab.run() == 0
    assert lab.sample_dtype == "uint8"
    assert_close(lab.outcome(), wanted)
