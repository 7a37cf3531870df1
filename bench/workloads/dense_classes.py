"""Dense samples of ten classes, as many features as MNIST has: run as a program, it trains on them alone."""

from __future__ import annotations

import time

import numpy as np

from hpcbal.paramserver.alone import Alone
from hpcbal.paramserver.apps import MLR
from hpcbal.paramserver.apps.sources import ArraySource

FEATURES, CLASSES, SAMPLES, MINI_BATCH, DATA_BLOCKS = 784, 10, 30_000, 1000, 8
LEARNING_RATE, EPOCHS = 0.1, 3


def samples() -> ArraySource:
    """Random features, and labels that depend on them."""
    rng = np.random.default_rng(0)
    features = rng.random((SAMPLES, FEATURES))
    labels = (features @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    facts = {"num_features": FEATURES, "num_classes": CLASSES}
    return ArraySource({"features": features, "labels": labels}, facts)


def main() -> None:
    """Print the seconds of each epoch but the first, with its objective."""
    app = MLR(samples(), learning_rate=LEARNING_RATE)
    alone = Alone(app, mini_batch=MINI_BATCH, num_data_blocks=DATA_BLOCKS)
    for epoch in range(EPOCHS):
        start_s = time.perf_counter()
        alone.train_epoch()
        alone.evaluate()
        if epoch:
            print(time.perf_counter() - start_s)


if __name__ == "__main__":
    main()
