"""Small datasets as people bring them: labels of odd kinds, folders of classes whose names differ.

Each of them knows the class of each sample. It must be refused with a sentence, or read with these classes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.data.labels import class_names
from hpcbal.data.source import open_source
from hpcbal.errors import HpcbalError

NAMES = ("cats", "dogs", "horses")
NUM_SAMPLES = 30

LABELS: dict[str, Callable[[NDArray[np.int64]], Any]] = {
    "numbers": lambda y: y,
    "bytes": lambda y: y.astype(np.uint8),
    "unsigned": lambda y: y.astype(np.uint64),
    "whole floats": lambda y: y.astype(np.float32),
    "halves": lambda y: y + 0.5,
    "one-hot": lambda y: np.eye(3)[y],
    "one-hot booleans": lambda y: np.eye(3)[y] > 0,
    "nearly one-hot": lambda y: np.eye(3)[y] * 0.9,
    "text": lambda y: np.array(NAMES, dtype=object)[y],
    "bytes of text": lambda y: np.array(NAMES, dtype="S8")[y],
    "numbers as text": lambda y: np.array(["2", "10", "1"], dtype=object)[y],
    "booleans": lambda y: y > 0,
    "a column": lambda y: y[:, None],
    "a row": lambda y: y[None, :],
    "from one": lambda y: y + 1,
    "negative": lambda y: y - 1,
    "far apart": lambda y: y * 500_000,
    "not a number": lambda y: np.where(y > 1, np.nan, y),
    "infinite": lambda y: np.where(y > 1, np.inf, y),
    "complex": lambda y: y.astype(np.complex64),
    "too few": lambda y: y[:-1],
    "none": lambda y: y[:0],
    "a scalar": lambda y: 1,
    "two columns": lambda y: np.stack([y, y], 1),
}

TEXTS = ("text", "bytes of text")

OTHER_NAMES: tuple[Sequence[str], ...] = (
    NAMES, ("Dogs", "cats", "horses"), ("cats", "cows", "horses"), ("cats", "dogs"),
    ("cats", "dogs ", "horses"),
    (*NAMES, "zebras"), ("dogs", "horses", "cats"), ("0", "1", "2"), ("cats", "dogs", ".horses"),
)  # fmt: skip


def try_data(index: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Make dataset number `index`, open it, and return what it is and what is wrong with the answer."""
    rng = random.Random(f"{seed}/data/{index}")
    what, data, truth = _folders(folder, rng) if rng.random() < 0.3 else _file(folder, rng)
    dnn = {
        "name": "a",
        "model": "hpcbal.models:softmax",
        "batch_size": 4,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "stop": {"max_epochs": 1},
    }
    decode = (
        []
        if "file" in data["args"].get("path", "")
        else [{"decode": {"mode": "gray"}}, {"resize": {"height": 4, "width": 4}}]
    )
    path = folder / "data.json"
    path.write_text(json.dumps({"data": data, "preprocessing": decode, "dnns": [dnn]}), encoding="utf-8")
    try:
        config = load_config(path)
        assert isinstance(config, EnsembleConfig)
        source = open_source(config)
        ids = [*source.train_ids[:12], *source.validation_ids[:12]]
        found = [(truth[int(number)], int(source.read(int(number))[1])) for number in ids]
    except HpcbalError as error:
        return what, [] if str(error).strip() else ["refused without a sentence"]
    except Exception as error:
        return what, [f"{type(error).__name__}: {str(error)[:200]}"]
    names = class_names(source.dataset)
    if len(set(found)) != len({known for known, _ in found}) or len(set(found)) != len({y for _, y in found}):
        return what, [f"classes are mixed up: {sorted(set(found))}"]
    if names is not None and any(names[label] != known for known, label in found if known in NAMES):
        return what, [f"classes have wrong names: {names}, {sorted(set(found))}"]
    return what, []


def _file(folder: Path, rng: random.Random) -> tuple[str, dict[str, Any], list[Any]]:
    kind = rng.choice(list(LABELS))
    classes = np.array([rng.randrange(3) for _ in range(NUM_SAMPLES)])
    if kind == "booleans":
        classes = classes % 2
    with h5py.File(folder / "file.h5", "w") as file:
        file["images"] = np.zeros((NUM_SAMPLES, 4, 4), np.uint8)
        labels = LABELS[kind](classes)
        texts = isinstance(labels, np.ndarray) and labels.dtype == object
        file.create_dataset("labels", data=labels, dtype=h5py.string_dtype() if texts else None)
    data = {"dataset": "hpcbal.data:hdf5", "args": {"path": str(folder / "file.h5")}}
    return f"labels: {kind}", data, [NAMES[number] if kind in TEXTS else int(number) for number in classes]


def _folders(folder: Path, rng: random.Random) -> tuple[str, dict[str, Any], list[Any]]:
    others, truth = rng.choice(OTHER_NAMES), []
    for part, names in (("train", NAMES), ("validation", others)):
        for name in sorted(names):
            (folder / part / name).mkdir(parents=True)
            for number in range(4):
                Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / part / name / f"{number}.png")
                truth += [] if name.startswith(".") else [name]
    images = {"dataset": "hpcbal.data:image_folder"}
    train, validation = ({**images, "args": {"path": str(folder / part)}} for part in ("train", "validation"))
    return f"folders: {others}", {**train, "validation": validation}, truth
