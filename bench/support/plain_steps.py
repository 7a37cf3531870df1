"""Steps of networks in a group of one rank and in the framework's own loop, for bench_quickstart.py and
bench_torch.py.

    python -m support.plain_steps CONFIG ROUNDS STEPS NAME...

Prints a JSON object: by network, the medians `ours_ms` and `plain_ms`. Both train on the same batch. Ours
starts from NumPy arrays and returns the sums of loss and correct predictions. Keras' training function is the
one that `fit` calls; its iterator repeats tensors that are made beforehand. PyTorch's loop gets such tensors,
too. Loss and accuracy are read in each step. The two take turns in blocks of STEPS steps, so that a change of
the machine's speed affects both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.plain_process import make_torch, samples, torch_step

from hpcbal.cluster.cgroup import Cores
from hpcbal.config import DnnConfig, load_ensemble
from hpcbal.config.checks.frameworks import framework_of
from hpcbal.config.imports import load_object
from hpcbal.data.source import PreprocessedSamples, open_source
from hpcbal.dataplane.reader import Batch
from hpcbal.training.backend import Backend, LocalCollective
from hpcbal.training.devices import LocalSlots
from hpcbal.training.frameworks import NativeBackend
from hpcbal.training.step import train_step


def our_step(
    backend: Backend, dnn: DnnConfig, source: PreprocessedSamples, batch: Batch
) -> Callable[[], Any]:
    """A step of a group of one rank."""
    replica = backend.build(dnn, source.sample_spec, source.num_classes, seed=0)
    collective = LocalCollective()
    return lambda: train_step(replica, batch, len(batch), collective)


def keras_step(dnn: DnnConfig, source: PreprocessedSamples, batch: Batch) -> Callable[[], Any]:
    """The step that Keras compiles for `fit`."""
    import keras
    import tensorflow as tf

    from hpcbal.training.keras.trainable import make_optimizer

    model = load_object(dnn.model)(tuple(source.sample_spec.shape), source.num_classes, **dnn.args)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make_optimizer(dnn.name, dnn.optimizer), loss, metrics=["accuracy"])
    model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((batch.x, batch.y)).repeat())

    def step() -> list[float]:
        return [float(value) for value in model.train_function(batches).values()]

    return step


def loop_step(dnn: DnnConfig, source: PreprocessedSamples, batch: Batch) -> Callable[[], Any]:
    """The step of a plain loop of PyTorch."""
    import torch

    module, optimizer = make_torch(dnn, source)
    module.train()
    x = torch.from_numpy(np.asarray(batch.x)).permute(0, 3, 1, 2)
    y = torch.from_numpy(np.asarray(batch.y, np.int64))
    return lambda: torch_step(module, optimizer, x, y)


def timed(step: Callable[[], Any], num_steps: int) -> list[float]:
    """Seconds of each step."""
    seconds = []
    for _ in range(num_steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> None:
    config = load_ensemble(Path(sys.argv[1]))
    num_rounds, num_steps, names = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    dnns = [dnn for dnn in config.dnns if dnn.name in names]
    backend = NativeBackend(config.backend, dnns, LocalSlots(0, (Cores(frozenset({0})),)))
    source = open_source(config)
    medians = {}
    for dnn in dnns:
        ids = source.ids_of_pass(0)[: dnn.batch_size]
        batch = Batch(ids, *samples(source, list(ids), 0, training=True))
        plain = loop_step if framework_of(dnn, config.backend) == "torch" else keras_step
        steps = {"ours_ms": our_step(backend, dnn, source, batch), "plain_ms": plain(dnn, source, batch)}
        seconds: dict[str, list[float]] = {who: [] for who in steps}
        for number in range(num_rounds + 1):
            for who, step in steps.items():
                own = timed(step, num_steps)
                seconds[who] += own if number else []  # the first round traces and warms up
        medians[dnn.name] = {who: 1e3 * float(np.median(own)) for who, own in seconds.items()}
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
