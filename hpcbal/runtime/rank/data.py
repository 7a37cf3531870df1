"""The data of one rank: facts about the stream, its node's ring, and its samples if it makes some."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcbal.config import DnnConfig, EnsembleConfig
from hpcbal.config.schema.objective import predicted_by
from hpcbal.config.schema.prune import COMMITTEE
from hpcbal.data.arrays import Affine
from hpcbal.data.content import CONTENT, known_as
from hpcbal.data.dataset import BadSample
from hpcbal.data.first_samples import doubts_about_values
from hpcbal.data.held_out import ids_by_part
from hpcbal.data.labels import class_names
from hpcbal.data.source import PreprocessedSamples, open_source
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.neighbours import CacheWithNeighbours
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.ensembling.answers import items_per_sample
from hpcbal.ensembling.evidence import OTHERWISE, WatchedItems
from hpcbal.errors import ClusterError, InputError
from hpcbal.events.ensemble import WITHOUT_ROUNDS
from hpcbal.policies.folds import PassParts

_FEW = 64
"""Validation samples whose labels are looked at before training."""


@dataclass(frozen=True, slots=True)
class Before:
    """Facts about a run that are known before its data are opened.

    Attributes:
        joined: the DNNs that have joined it; by name, the file that lists it.
        trained_on: fingerprints of the data of its checkpoints.
        broken: ids of samples that could not be used in earlier starts.
    """

    joined: Mapping[str, str] = field(default_factory=dict)
    trained_on: Collection[str] = ()
    broken: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts about the data that all ranks know; fixed for the run.

    Attributes:
        spec: the shape of the shared stream.
        num_classes: number of classes in the dataset.
        fingerprint: identifies the data and their preprocessing; checkpoints store it. It stays as it is when
            samples that were broken are repaired.
        as_found: the same of the data that there are now.
        max_broken: number of broken samples allowed in a pass; with more, the scheduler ends the run.
        mean_size: of the training samples, if the dataset declares sizes; else None.
        doubts: what is strange about the dataset's classes and values, as sentences for warnings.
        on_device: operations that trainers apply to the samples of the stream.
        sample_weights: how much each sample counts in the loss, by id, float64, shape (samples of the
            dataset,); None: all count 1.
        class_counts: training samples of each class, shape (num_classes,); None if the dataset does not list
            its labels.
        class_names: names of the classes, by number; empty if the data have none.
        remarks: what may be a mistake in how the data was read, as sentences for warnings.
        notes: what people should know about how the data was read.
        is_identified: whether the dataset has a fingerprint of its own, which enters `fingerprint`.
        fold_of: fold of each training sample, shape (num_train,); None if no DNN has folds.
        watched: validation items whose predictions are compared for a committee; None if none are, see
            `EnsembleConfig.combined`.
    """

    spec: StreamSpec
    num_classes: int
    fingerprint: str
    max_broken: float
    as_found: str
    doubts: tuple[str, ...] = ()
    mean_size: float | None = None
    on_device: tuple[Affine, ...] = ()
    sample_weights: NDArray[np.float64] | None = None
    class_counts: NDArray[np.int64] | None = None
    remarks: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    is_identified: bool = False
    notes: tuple[str, ...] = ()
    fold_of: NDArray[np.int16] | None = None
    watched: WatchedItems | None = None

    def parts_of(self, dnn: DnnConfig, seed: int) -> PassParts:
        """The positions of each pass that a DNN trains and is validated on.

        Args:
            seed: of the run.
        """
        fold = None if dnn.fold is None else dnn.fold - 1
        return PassParts(self.spec.num_train, self.spec.num_positions, self.fold_of, fold, seed)

    def check_fits(self, dnn: DnnConfig, config: EnsembleConfig) -> None:
        """Refuse a DNN whose steps do not fit in the ring; without rounds, all do.

        Args:
            config: of the run.

        Raises:
            InputError: names the DNN, and what would help.
        """
        if config.schedule.paradigm in WITHOUT_ROUNDS:
            return
        try:
            self.spec.check_read(self.parts_of(dnn, config.seed).most_positions(dnn.batch_size))
        except InputError as error:
            raise InputError(f"dnns.{dnn.name}: {error}") from error

    @classmethod
    def of(
        cls, config: EnsembleConfig, source: PreprocessedSamples, before: Before = Before()
    ) -> StreamFacts:
        """The facts about `source`, on a rank that has it."""
        spec = StreamSpec.of_run(source, config)
        is_normalised = any(step.name == "normalize" for step in config.preprocessing)
        num_twice = 0 if source.fold_of is None else spec.num_train
        max_broken = config.data.max_bad_fraction * (spec.num_positions - num_twice)
        return cls(
            spec,
            source.num_classes,
            known_as(source.fingerprint, before.trained_on, ids_by_part(source.dataset, before.broken)),
            max_broken,
            source.fingerprint,
            (*source.doubts(), *doubts_about_values(source, is_normalised=is_normalised)),
            source.mean_size,
            source.on_device,
            source.sample_weights,
            source.class_counts(),
            tuple(map(str, getattr(source.dataset, "remarks", ()))),
            class_names(source.dataset) or (),
            getattr(source.dataset, "is_identified", bool(getattr(source.dataset, "fingerprint", ""))),
            tuple(map(str, getattr(source.dataset, "notes", ()))),
            source.fold_of,
            watched_items(config, source),
        )


def watched_items(config: EnsembleConfig, source: PreprocessedSamples) -> WatchedItems | None:
    """Draw the validation items for which committees are compared during the run; None if none are.

    Raises:
        InputError: if there are no validation samples, or a sample has several labels, or shares of classes.
    """
    wanted_by, compared = config.combined
    if not compared:
        return None
    label = source.label_spec
    if label.parts:
        names = ", ".join(label.by_name)
        raise InputError(
            f"{wanted_by}: got {COMMITTEE}, but a sample has several labels ({names}), allowed: one; use "
            f"{OTHERWISE[wanted_by]}"
        )
    if not source.num_validation:
        raise InputError(
            f"{wanted_by}: got {COMMITTEE}, but there are no validation samples; set "
            f"data.validation_fraction, or use {OTHERWISE[wanted_by]}"
        )
    kind = predicted_by(compared[0])
    per_sample = items_per_sample(label.shape, label.dtype, kind)
    watched = WatchedItems.draw(
        kind, source.validation_ids, per_sample, config.prune.samples, config.seed, wanted_by
    )
    _refuse_shares(source, watched)
    return watched


def _refuse_shares(source: PreprocessedSamples, watched: WatchedItems) -> None:
    """Look at the labels of some validation samples before anything is trained."""
    if np.dtype(source.label_spec.dtype).kind != "f" or watched.kind != "classes":
        return
    for sample_id in source.validation_ids[:_FEW].tolist():
        with contextlib.suppress(BadSample):
            _, label = source.sample(sample_id, 0, training=False)
            watched.refuse_soft_labels(label[None])


@dataclass(frozen=True, slots=True)
class RankData:
    """The data that one rank holds.

    Attributes:
        facts: equal on all ranks.
        ring: the ring of this rank's node.
        source: the source of samples; None on ranks that are not preprocessors.
        cache: where the source keeps samples; None if it keeps none.
        hit_rate: share of the samples, 0..1, for which the caches of all nodes have room; equal on all ranks.
        cache_warning: why there is no cache although one is wanted; empty if there is one, or none is wanted.
        misfits: why DNNs that have joined cannot augment these samples, by name; equal on all ranks.
    """

    facts: StreamFacts
    ring: NodeRing
    source: PreprocessedSamples | None
    cache: SampleCache | CacheWithNeighbours | None = None
    hit_rate: float = 0.0
    cache_warning: str = ""
    misfits: Mapping[str, str] = field(default_factory=dict)

    @property
    def neighbours(self) -> CacheWithNeighbours | None:
        """The cache, if other nodes have some, too."""
        return self.cache if isinstance(self.cache, CacheWithNeighbours) else None

    def own_source(self, config: EnsembleConfig) -> PreprocessedSamples:
        """Open the dataset on a trainer that makes its own batches.

        Trainers do so when a run begins to have no rounds, before any of them trains without: at the start,
        or when `auto` chooses that. What files hold may have changed since the preprocessors have opened
        them, as it may while a run reads them.

        Raises:
            HpcbalError: if the dataset cannot be opened, or has other samples than the run started with.
        """
        source = open_source(config)
        known = self.facts.fingerprint.partition(CONTENT)[0]
        if source.identity != known:
            raise ClusterError(
                f"data.dataset {config.data.dataset} has changed since the run began: fingerprints "
                f"{known} and {source.identity}; restore it, then run the same command"
            )
        source.cache = self.cache
        return source

    def close(self) -> None:
        """Free the memory; collective over the node, and over the nodes if they have caches."""
        if self.cache is not None:
            self.cache.close()
        self.ring.close()
