"""CPU time of each worker's share of a step, on one core: what workers with cores of their own would take.

Usage: series_time.py SERIES NUM_WORKERS NUM_EPOCHS. One process computes the shares of all workers, one after
the other, in every way of `support.plaid`; ways change with each epoch. Prints one JSON object: by way, CPU
seconds of each settled epoch's shares, shape (epochs, steps, workers).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from support.plaid import SETTLING_EPOCHS, WAYS, open_plaid, plaid_config, steps_of

from hpcbal.config import DnnConfig
from hpcbal.dataplane.reader import Batch
from hpcbal.training.tensorflow_backend import TensorFlowBackend
from hpcbal.training.tensorflow_setup import setup_tensorflow


def main() -> None:
    source, num_workers, num_epochs = open_plaid(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    read = [source.read(sample) for sample in range(len(source))]
    setup_tensorflow(0, num_workers)
    dnn = DnnConfig.model_validate({**plaid_config()["dnns"][0], "stop": {"max_epochs": 1}})
    replica = TensorFlowBackend().build(dnn, source.sample_spec, source.num_classes, 0)
    seconds: dict[str, list[list[list[float]]]] = {name: [] for name in WAYS}
    for epoch in range(num_epochs):
        for name, way in WAYS.items():
            steps = []
            for shares in steps_of(way, num_workers, source, epoch):
                total, parts, took = sum(map(len, shares)), [], []
                for ids in shares:
                    batch = Batch(ids, [read[i][0] for i in ids], np.array([read[i][1] for i in ids]))
                    began = time.process_time()
                    parts.append(replica.compute(batch, total).tensors)
                    took.append(time.process_time() - began)
                replica.apply([sum(tensors) for tensors in zip(*parts, strict=True)])
                steps.append(took)
            if epoch >= SETTLING_EPOCHS:
                seconds[name].append(steps)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
