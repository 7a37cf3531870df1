"""A TensorFlow rank whose backward pass is slow is named, and compute is given as the reason."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.mpi]

LATE_S, STEPS = 0.2, 4

# A dense network; on one chosen rank, the gradient of its last layer comes 0.2 s late.
LATE = """\
import os
import time

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable()
class Late(keras.layers.Layer):
    def call(self, inputs):
        @tf.custom_gradient
        def passed_on(x):
            def gradient(upstream):
                return tf.ensure_shape(tf.numpy_function(sleep, [upstream], upstream.dtype), upstream.shape)

            return tf.identity(x), gradient

        return passed_on(inputs)


def sleep(upstream):
    time.sleep(0.2)
    return upstream


def network(input_shape, num_classes, late_rank):
    is_late = int(os.environ["OMPI_COMM_WORLD_RANK"]) == late_rank
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *layers, *([Late()] if is_late else [])])
"""


def test_a_sleep_in_the_backward_pass_of_a_rank_is_its_compute(lab: Any) -> None:
    """Trainers are ranks 2 and 3, so rank 3 has slot 1. The first pass is left out: it traces the network."""
    (lab.folder / "late.py").write_text(LATE, encoding="utf-8")
    dnn = {
        "name": "a",
        "model": "late:network",
        "args": {"late_rank": 3},
        "batch_size": 24,
        "stop": {"max_epochs": 2},
    }
    lab.configure(
        dnns=[dnn],
        backend={"name": "tensorflow", "collective": "mpi"},
        slots={"per_node": 2},
        schedule={
            "paradigm": "global",
            "max_slots_per_dnn": 2,
            "profiling": lab.known_rates({"a": {1: 1000.0, 2: 1900.0}}),
        },
    )
    done = lab.start().wait(timeout_s=150)  # TensorFlow takes its time to start
    assert done.code == 0, done
    assert "MPI sums the gradients (backend.collective: mpi)" in done.out
    epoch = lab.events("epoch-done")[1]
    assert (epoch.straggler.slot, epoch.straggler.why) == (1, "compute")
    assert epoch.straggler.late_s > 0.5 * STEPS * LATE_S
    ranks = epoch.facts.ranks
    assert ranks.compute_s[1] > STEPS * LATE_S
    assert ranks.collective_s[0] > ranks.collective_s[1]
    assert lab.status()["dnns"][0]["straggler"]["slot"] == 1
