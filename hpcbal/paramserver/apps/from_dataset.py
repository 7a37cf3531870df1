"""Use a dataset of DNNs (`hpcbal.data:digits` and others) in a parameter-server job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcbal.errors import DataError, InputError
from hpcbal.paramserver.api.columns import Array, Ragged
from hpcbal.paramserver.apps.sources import ArraySource

if TYPE_CHECKING:
    from hpcbal.data.dataset import Dataset

_KEY = "data.args.dataset"


def labelled(
    dataset: str = "hpcbal.data:digits", args: Mapping[str, Any] | None = None, num_samples: int | None = None
) -> ArraySource:
    """Samples as features with classes, for `MLR`: columns `features` and `labels`.

    Samples of validation are left out. Numbers of type uint8 are divided by 255.

    Args:
        dataset: import path of a dataset whose labels are classes, and whose samples are arrays of one shape.
        args: its arguments.
        num_samples: use the first ones only, >= 1; null: all.

    Raises:
        InputError: the dataset is of another kind, or cannot be opened.
    """
    opened = _opened(dataset, args)
    ids = _training_ids(opened, num_samples)
    features, labels = _read(opened, ids, dataset)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"{_KEY}: {dataset} has labels of shape {labels.shape[1:]}, allowed: one class each")
    facts = {"num_features": features.shape[1], "num_classes": int(opened.num_classes)}
    return ArraySource({"features": features, "labels": labels.astype(np.int64)}, facts)


def samples(
    dataset: str = "hpcbal.data:digits",
    args: Mapping[str, Any] | None = None,
    num_samples: int | None = None,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> ArraySource:
    """Samples as they are, for `KerasNetwork`: columns `samples`, `labels` and `is_validation`.

    Numbers of type uint8 are divided by 255; samples become float32.

    Args:
        dataset: import path of a dataset whose samples are arrays of one shape.
        args: its arguments.
        num_samples: use the first ones only, >= 1; null: all.
        validation_fraction: of the samples, in [0, 1): they are only evaluated. Not used if the dataset has a
            split of its own.
        seed: of the choice.

    Raises:
        InputError: the dataset is of another kind, or cannot be opened.
    """
    from hpcbal.data.split import split_ids

    opened = _opened(dataset, args)
    try:
        training, validation = split_ids(opened, seed, validation_fraction)
    except DataError as error:
        raise InputError(f"data.args: {error}") from error
    chosen = np.sort(np.concatenate([training, validation]))[: _checked_number(num_samples)]
    read = [opened.read(sample) for sample in chosen.tolist()]
    found = np.stack([np.asarray(sample) for sample, _ in read])
    values = found.astype(np.float32)
    if found.dtype == np.uint8:
        values /= np.float32(255.0)
    labels = np.asarray([label for _, label in read], opened.label_spec.dtype)
    is_validation = np.isin(chosen, validation)
    if is_validation.all():
        raise InputError(f"{_KEY}: {dataset} has no training samples among the first {len(chosen)}")
    facts = {"num_classes": int(opened.num_classes), "num_validation": int(is_validation.sum())}
    return ArraySource({"samples": values, "labels": labels, "is_validation": is_validation}, facts)


def pixels(
    dataset: str = "hpcbal.data:digits", args: Mapping[str, Any] | None = None, num_samples: int | None = None
) -> ArraySource:
    """Samples as users who rate every pixel, for `NMF`: columns `items` and `ratings`.

    Args: see `labelled`; numbers must not be negative.

    Raises:
        InputError: see `labelled`.
    """
    opened = _opened(dataset, args)
    features, _ = _read(opened, _training_ids(opened, num_samples), dataset)
    if (features < 0).any():
        raise InputError(f"{_KEY}: {dataset} has numbers below 0, which no product of factors >= 0 gives")
    num_users, num_items = features.shape
    offsets = np.arange(num_users + 1) * num_items
    items = Ragged(np.tile(np.arange(num_items), num_users), offsets)
    return ArraySource(
        {"items": items, "ratings": Ragged(features.ravel(), offsets)}, {"num_items": num_items}
    )


def regression(
    dataset: str = "hpcbal.data:diabetes",
    args: Mapping[str, Any] | None = None,
    num_samples: int | None = None,
) -> ArraySource:
    """Features as samples, for `Lasso`: the column `column`, and `target`. Both are centred.

    Args: see `labelled`; labels are one number each. `num_samples` counts observations.

    Raises:
        InputError: see `labelled`.
    """
    opened = _opened(dataset, args)
    features, labels = _read(opened, _training_ids(opened, num_samples), dataset)
    if labels.ndim != 1:
        raise InputError(
            f"{_KEY}: {dataset} has labels of shape {labels.shape[1:]}, allowed: one number each"
        )
    columns = np.ascontiguousarray((features - features.mean(axis=0)).T)
    target = labels.astype(np.float64)
    facts = {"num_observations": len(target)}
    return ArraySource({"column": columns}, facts, target=target - target.mean())


def _opened(path: str, args: Mapping[str, Any] | None) -> Dataset:
    # Imported here, so that apps without such data start faster.
    from hpcbal.data.held_out import open_dataset

    opened = open_dataset(path, dict(args or {}), _KEY)
    spec = opened.sample_spec
    if isinstance(spec, Mapping) or opened.label_spec.parts:
        raise InputError(
            f"{_KEY}: {path} has samples of several named arrays or labels, allowed for parameter-server "
            "jobs: one array and one label for each sample"
        )
    if spec is None:
        raise InputError(f"{_KEY}: {path} has encoded images, allowed: arrays of numbers")
    if any(length is None or length < 0 for length in spec.shape):
        raise InputError(f"{_KEY}: {path} has samples of unequal shape, allowed: one shape")
    return opened


def _training_ids(opened: Dataset, num_samples: int | None) -> list[int]:
    own = getattr(opened, "validation_ids", None)
    left_out = set() if own is None else set(np.asarray(own).tolist())
    return [sample for sample in range(len(opened)) if sample not in left_out][: _checked_number(num_samples)]


def _checked_number(num_samples: int | None) -> int | None:
    if num_samples is not None and num_samples < 1:
        raise InputError(f"data.args.num_samples: got {num_samples}, allowed: >= 1, or null for all")
    return num_samples


def _read(opened: Dataset, ids: list[int], path: str) -> tuple[Array, Array]:
    """Samples as float64, shape (num_samples, num_features), and labels."""
    if not ids:
        raise InputError(f"{_KEY}: {path} has no training samples")
    read = [opened.read(sample) for sample in ids]
    samples = np.stack([np.asarray(sample) for sample, _ in read])
    features = samples.reshape(len(ids), -1).astype(np.float64)
    if samples.dtype == np.uint8:
        features /= 255.0
    return features, np.asarray([label for _, label in read])
