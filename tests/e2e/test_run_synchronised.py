"""A network with synchronised batch norm learns in an uneven group what its plain twin learns alone."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.e2e


def test_an_uneven_group_ends_with_the_weights_of_one_slot(lab):
    """TensorFlow, 19 to 1 samples of a step, and a smaller last step; also moving statistics and metrics."""
    outcomes = []
    for slots, kind in ((2, "sync"), (1, "local")):
        dnn = {
            "name": "a",
            "model": "hpcbal.models:resnet",
            "args": {"depth": 8, "width": 4, "batch_norm": kind},
            "batch_size": 160,
            "stop": {"max_epochs": 2},
        }
        lab.configure(
            dnns=[dnn],
            data={"dataset": "toys:images", "validation_fraction": 0.2},
            preprocessing=[{"normalize": {"mean": 0.305, "std": 0.376}}],
            backend={"name": "tensorflow", "precision": "float64", "collective": "mpi"},
            balance={"policy": "fixed", "shares": [19, 1]} if slots == 2 else {"policy": "even"},
            schedule={"profiling": lab.known_rates({"a": {1: 1000.0, 2: 1900.0}})},
            slots={"per_node": slots},
            dataplane={"ring_bytes": "1MiB", "block_samples": 32},
            output={"dir": kind},
        )
        lab.out = lab.folder / kind
        done = lab.start().wait(timeout_s=150)  # TensorFlow takes its time to start
        assert done.code == 0, done
        outcomes.append(lab.outcome()["a"])
    (history, arrays), (plain_history, plain_arrays) = outcomes
    for epoch, plain in zip(history, plain_history, strict=True):
        assert epoch[2] == pytest.approx(plain[2], rel=1e-9)
    assert arrays.keys() == plain_arrays.keys()  # so a run can be resumed either way
    for name, array in plain_arrays.items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-10, err_msg=name)
