"""One of the plain processes of bench_quickstart.py and bench_torch.py: trains networks until none is left.

    python -m support.plain_process CONFIG EPOCHS.json CLAIMS

CONFIG is the configuration of the run that it is compared with, EPOCHS.json holds the number of epochs of
each network, and in the directory CLAIMS a process notes the networks that it takes. Networks, optimizers,
batch size, samples and their preprocessing are those of the run. Networks of Keras are trained by Keras' own
`fit`, modules of PyTorch by a loop such as its tutorials show.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcbal.config import DnnConfig, load_ensemble
from hpcbal.config.checks.frameworks import framework_of
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


def train_keras(dnn: DnnConfig, source: PreprocessedSamples, num_epochs: int) -> float:
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


def make_torch(dnn: DnnConfig, source: PreprocessedSamples) -> tuple[Any, Any]:
    """The module of a DNN, and its optimizer."""
    from hpcbal.training.rank_share import module_shape
    from hpcbal.training.torch.optimizers import make_optimizer

    module = load_object(dnn.model)(module_shape(source.sample_spec.shape), source.num_classes, **dnn.args)
    return module, make_optimizer(dnn.name, dnn.optimizer, dict(module.named_parameters()))


def torch_step(module: Any, optimizer: Any, x: Any, y: Any) -> tuple[float, int]:
    """One step of a plain loop; returns the mean loss and the number of correct predictions."""
    from torch.nn.functional import cross_entropy

    logits = module(x.float())
    loss = cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), int((logits.argmax(1) == y).sum())


def train_torch(dnn: DnnConfig, source: PreprocessedSamples, num_epochs: int) -> float:
    """Train with a plain loop, and return the last validation accuracy."""
    import torch

    torch.set_num_threads(1)
    module, optimizer = make_torch(dnn, source)

    def tensors(ids: Sequence[int], epoch: int, *, training: bool) -> list[tuple[Any, Any]]:
        x, y = (torch.from_numpy(each) for each in samples(source, ids, epoch, training=training))
        x = x.permute(0, 3, 1, 2)
        return list(zip(x.split(dnn.batch_size), y.split(dnn.batch_size), strict=True))

    validation = tensors(list(source.validation_ids), 0, training=False)
    accuracy = 0.0
    for epoch in range(num_epochs):
        module.train()
        for x, y in tensors(list(source.ids_of_pass(epoch)[: source.num_train]), epoch, training=True):
            torch_step(module, optimizer, x, y)
        module.eval()
        with torch.no_grad():
            correct = sum(int((module(x.float()).argmax(1) == y).sum()) for x, y in validation)
        accuracy = correct / sum(len(y) for _, y in validation)
    return accuracy


def main() -> None:
    config = load_ensemble(Path(sys.argv[1]))
    epochs = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    source = open_source(config)
    for dnn in config.dnns:
        if claim(Path(sys.argv[3]), dnn.name):
            train = train_torch if framework_of(dnn, config.backend) == "torch" else train_keras
            print(dnn.name, train(dnn, source, epochs[dnn.name]), flush=True)


if __name__ == "__main__":
    main()
