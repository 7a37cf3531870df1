"""One of the plain Keras processes of bench_quickstart.py: trains the next network until none is left.

    python -m support.keras_process CONFIG EPOCHS.json CLAIMS

CONFIG is the configuration of the run that it is compared with, EPOCHS.json holds the number of epochs of
each network, and in the directory CLAIMS a process notes the networks that it takes. Networks, optimizers,
batch size, samples and their preprocessing are those of the run. Training is Keras' own `fit`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcbal.config import DnnConfig, load_ensemble
from hpcbal.config.imports import load_object
from hpcbal.data.source import PreprocessedSamples, open_source


def claim(claims: Path, name: str) -> bool:
    """Take a network, unless another process has taken it."""
    try:
        (claims / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def samples(
    source: PreprocessedSamples, ids: Sequence[int], pass_index: int, *, training: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Preprocess samples as the shared stream does: x of shape (n, *sample shape), y of shape (n,)."""
    pairs = [source.sample(int(sample_id), pass_index, training) for sample_id in ids]
    return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs]).reshape(len(pairs))


def train(dnn: DnnConfig, source: PreprocessedSamples, num_epochs: int) -> float:
    """Train with `fit`, and return the last validation accuracy."""
    import keras

    from hpcbal.training.keras.trainable import make_optimizer

    model = load_object(dnn.model)(tuple(source.sample_spec.shape), source.num_classes, **dnn.args)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make_optimizer(dnn.name, dnn.optimizer), loss, metrics=["accuracy"])
    validation = samples(source, list(source.validation_ids), 0, training=False)
    accuracy = 0.0
    for epoch in range(num_epochs):
        order = source.ids_of_pass(epoch)[: source.num_train]
        x, y = samples(source, list(order), epoch, training=True)
        history = model.fit(
            x,
            y,
            batch_size=dnn.batch_size,
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,  # the pass has its order
            validation_data=validation,
            validation_batch_size=dnn.batch_size,
            verbose=0,
        ).history
        accuracy = history["val_accuracy"][-1]
    return float(accuracy)


def main() -> None:
    config = load_ensemble(Path(sys.argv[1]))
    epochs = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    source = open_source(config)
    for dnn in config.dnns:
        if claim(Path(sys.argv[3]), dnn.name):
            print(dnn.name, train(dnn, source, epochs[dnn.name]), flush=True)


if __name__ == "__main__":
    main()
