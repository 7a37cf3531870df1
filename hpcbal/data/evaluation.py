"""The samples on which trained DNNs are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcbal import env
from hpcbal.data.dataset import Dataset
from hpcbal.data.held_out import of_same_kind, open_dataset, open_held_out
from hpcbal.data.pipeline import build_operations
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.unlabelled import open_unlabelled
from hpcbal.errors import DataError

if TYPE_CHECKING:
    from hpcbal.config import EnsembleConfig

TEST: Final = "test"
VALIDATION: Final = "validation"


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples of a source, in the order in which they are evaluated.

    Attributes:
        name: what they are, for people.
        source: reads them.
        ids: their ids, shape (n,), n >= 1.
        has_labels: whether the labels of the samples mean anything.
    """

    name: str
    source: PreprocessedSamples
    ids: NDArray[np.int64]
    has_labels: bool = True


def open_sample_set(
    config: EnsembleConfig,
    trained: PreprocessedSamples,
    wanted: str,
    args: Mapping[str, Any] = MappingProxyType({}),
    shown: tuple[str, str] = ("--data", "--data-args"),
    *,
    has_labels: bool = True,
) -> SampleSet:
    """Open the samples to evaluate; they are preprocessed like validation samples.

    Args:
        config: of the run that has trained the DNNs.
        trained: the samples of that run.
        wanted: `test`, `validation`, or the import path of a dataset that is called with `args`; without
            labels also a file or a folder, see `open_unlabelled`.
        shown: names of `wanted` and `args`, for messages.
        has_labels: whether the samples have labels; those of the run always do.

    Raises:
        DataError: if there are none, the dataset cannot be opened, or its samples are of another kind.
        InputError: if nothing exists at the import path.
        UserCodeError: if a dataset's module or callable raises.
    """
    if wanted == VALIDATION:
        if not trained.num_validation:
            raise DataError("the run has no validation samples: data.validation_fraction is 0")
        return SampleSet("the validation set", trained, trained.validation_ids)
    if wanted == TEST and config.data.test is None:
        if not len(trained.test_ids):
            raise DataError(
                f"{shown[0]}: the run has no test samples, allowed: validation, or the import path of a "
                "dataset; or name one in data.test and run 'hpcbal run' again"
            )
        return SampleSet("data.test_fraction", trained, trained.test_ids)
    if wanted == TEST:
        return whole_set("data.test", open_held_out(config, TEST, trained.dataset), config)
    if not has_labels:
        unlabelled = open_unlabelled(wanted, env.expanded(args, shown[1]), trained.dataset, shown[0])
        return replace(whole_set(wanted, unlabelled, config), has_labels=False)
    dataset = open_dataset(wanted, env.expanded(args, shown[1]), shown[0])
    dataset = of_same_kind(dataset, trained.dataset, f"{shown[0]} {wanted}")
    return whole_set(wanted, dataset, config)


def whole_set(name: str, dataset: Dataset, config: EnsembleConfig) -> SampleSet:
    """Return all samples of a dataset that is not part of the run, preprocessed like validation samples."""
    source = PreprocessedSamples(
        dataset,
        build_operations([(step.name, step.args) for step in config.preprocessing]),
        seed=config.seed,
        validation_fraction=0.0,
        max_sample_bytes=config.dataplane.max_sample_bytes,
        on_device=config.dataplane.on_device,
    )
    return SampleSet(name, source, np.arange(len(dataset)))  # all, even if it declares a split
