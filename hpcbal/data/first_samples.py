"""Try a few samples before anything is trained: one mistake in data or operations breaks all of them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import BadSample
from hpcbal.data.labels import class_labels
from hpcbal.data.source import PreprocessedSamples
from hpcbal.errors import DataError


def check_first(source: PreprocessedSamples, num_samples: int = 20) -> None:
    """Read and preprocess training and validation samples until one of either kind is good.

    Args:
        num_samples: most samples of either kind that are tried, taken evenly, >= 1.

    Raises:
        DataError: if none of these samples can be read and preprocessed.
    """
    for kind, ids in (("training", source.train_ids), ("validation", source.validation_ids)):
        tried = ids[:: max(1, len(ids) // num_samples)][:num_samples].tolist()
        broken: list[BadSample] = []
        for sample_id in tried:
            try:
                source.sample(sample_id, 0, training=kind == "training")
            except BadSample as error:
                broken.append(error)
            else:
                break
        if broken and len(broken) == len(tried):
            raise DataError(
                f"data: none of the {len(tried)} {kind} samples that were tried can be used, the first one: "
                f"{broken[0]}. Fix the cause, then run the same command again"
            )


_MOST = 4.0
_LEAST = 0.05


def doubts_about_values(source: PreprocessedSamples, *, is_normalised: bool) -> tuple[str, ...]:
    """Return a sentence if values after preprocessing are far from what networks train well on.

    Standardised values have a mean of about 0 and a standard deviation of about 1. Looked for are means and
    deviations of `normalize` that are meant for bytes, a normalisation that is done twice, and none at all;
    in all values together, then in each feature (along the last axis: a column, a channel), where only the
    worst is named. Whole numbers other than bytes are not judged: they may be words.

    Args:
        is_normalised: whether `normalize` is among the operations.

    Raises:
        DataError: if the dataset lists another class for one of these samples than it reads: the list
            decides on weights of classes, balanced orders and folds.
    """
    samples = _few_samples(source)
    return tuple(
        f"{name}: {text}" if name else text
        for name, arrays in samples.items()
        for text in _doubts_about(arrays, is_normalised=is_normalised)
    )


def _few_samples(source: PreprocessedSamples) -> dict[str, list[NDArray[Any]]]:
    """The arrays of eight training samples, by name, as networks get them; unreadable ones are skipped."""
    ids = source.train_ids
    listed = class_labels(source.dataset) if source.dataset.label_spec.is_class else None
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in source.sample_spec.by_name}
    for sample_id in ids[:: max(1, len(ids) // 8)][:8].tolist():
        with contextlib.suppress(BadSample):
            sample, label = source.sample(sample_id, 0, training=False)
            if listed is not None:
                _check_listed(
                    sample_id, int(listed[sample_id]), int(np.argmax(label) if source.mixes else label)
                )
            for name, part in source.sample_spec.unpacked(sample).items():
                array = part
                for operation in source.on_device:
                    array = operation.apply(array) if operation.of == name else array
                found[name].append(array)
    return found


def _check_listed(sample_id: int, listed: int, read: int) -> None:
    if listed != read:
        raise DataError(
            f"data.dataset: its attribute labels has class {listed} for sample {sample_id}, but "
            f"read({sample_id}) returns class {read}, allowed: the same; put labels into the order of the "
            "samples, or remove the attribute"
        )


def _doubts_about(arrays: list[NDArray[Any]], *, is_normalised: bool) -> tuple[str, ...]:
    samples: list[NDArray[np.float64]] = []
    for array in arrays:
        if array.dtype.kind != "f" and array.dtype != np.uint8:
            return ()
        samples.append(np.asarray(array, np.float64).reshape(-1, array.shape[-1] if array.ndim else 1))
    if not samples:
        return ()
    which, values = "values", np.concatenate([each.ravel() for each in samples])
    if _are_usual(values) and len({each.shape[1] for each in samples}) == 1:
        features = np.concatenate(samples)  # (values of a feature, features)
        # Medians, because a rare word that is standardised has a large mean if it is in one of few samples.
        medians = np.median(np.abs(features), axis=0)
        worst = int(np.argmax(medians))
        if medians[worst] > _MOST:
            which, values = f"values of feature {worst} (of {len(medians)})", features[:, worst]
    mean, deviation = float(values.mean()), float(values.std())
    if _are_usual(values) and (deviation >= _LEAST or not is_normalised):
        return ()
    advice = (
        "mean and std must be in the units that it gets (bytes become 0 to 1 first), and once is enough"
        if is_normalised
        else "add it, unless the network scales its inputs itself"
    )
    return (
        f"{which} after preprocessing are {values.min():.4g} to {values.max():.4g}, with mean {mean:.4g} and "
        f"standard deviation {deviation:.4g} (of {len(samples)} samples); networks train best with about 0 "
        f"and 1. Check normalize: {advice}",
    )


def _are_usual(values: NDArray[np.float64]) -> bool:
    return abs(values.mean()) <= _MOST and bool(values.std() <= _MOST)
