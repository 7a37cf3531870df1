"""Sweeps of small networks on digits and on Fashion-MNIST, whose members are then chosen for a committee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcbal.data.datasets.small_sets import DEBIAN_PATH

NUM_DNNS, MAX_EPOCHS = 27, 18
SETS = ("digits", "fashion")
NUM_SEEN = {"digits": 360, "fashion": 500}
"""Validation items that rules see; the others only measure. Half of all."""

ALL_ITEMS = 100_000
FASHION_SAMPLES = 7000


def has_data(name: str, fashion: Path = Path(DEBIAN_PATH)) -> bool:
    """Return whether the images are at hand: Fashion-MNIST is Debian's package `dataset-fashion-mnist`."""
    return name != "fashion" or (fashion / "train-images-idx3-ubyte.gz").exists()


def sweep(name: str, seed: int, prune: dict[str, Any], folder: Path, fashion: Path) -> dict[str, Any]:
    """Return the configuration of a run: each network at its own pace, on one of two slots.

    Args:
        name: digits or fashion.
        prune: the section.
        folder: of the output.
        fashion: folder with the files of Fashion-MNIST.
    """
    if name == "digits":
        data: dict[str, Any] = {"dataset": "hpcbal.data:digits", "validation_fraction": 0.4}
        normalize, batch_size = {"mean": 0.305, "std": 0.376}, 32
    else:
        data = {"dataset": "hpcbal.data:fashion_mnist", "args": {"path": str(fashion)}}
        data["max_samples"] = FASHION_SAMPLES
        normalize, batch_size = {"mean": 0.286, "std": 0.353}, 64
    space = {
        "optimizer.learning_rate": {"log_uniform": [0.003, 0.3]},
        "args.units": {"choice": [16, 48, 144]},
        "args.layers": {"choice": [1, 2, 3]},
        "args.dropout": {"choice": [0.0, 0.2]},
    }
    return {
        "schema": 1,
        "name": f"committee-{name}",
        "seed": seed,
        "data": data,
        "preprocessing": [{"normalize": normalize}],
        "defaults": {
            "batch_size": batch_size,
            "optimizer": {"name": "sgd", "momentum": 0.9},
            "stop": {"monitor": "val_loss", "max_epochs": MAX_EPOCHS},
        },
        "sweeps": [
            {
                "name": "mlp-{sample}",
                "model": "hpcbal.models.torch:mlp",
                "search": {"samples": NUM_DNNS, "space": space},
            }
        ],
        "prune": prune,
        "schedule": {"paradigm": "independent"},
        "checkpoint": {"keep": "last"},
        "slots": {"per_node": 2, "preprocessors_per_node": 1},
        "output": {"dir": str(folder)},
    }
