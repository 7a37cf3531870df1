"""How much memory a cache of samples takes, and how much of it a node has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.arrays import LINE_BYTES
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cell import aligned
from hpcbal.dataplane.shared_memory import PAGE_BYTES, Room, rooms, shortage

if TYPE_CHECKING:
    from hpcbal.data.source import PreprocessedSamples

AUTO_SHARE = 0.5
"""Most of the memory that is left when the run starts that `cache_bytes: auto` takes."""

NAMED = ("the cache of decoded samples", "dataplane.cache_bytes")

KEPT_FREE = 1 / 16
"""Share of each limit of the node's memory that the cache leaves free, whatever its size."""

NUM_MEASURED, MEASURED_BYTES = 64, 2**28
"""How many samples are read, if they differ in size, and how many bytes of them."""
NUM_ERRORS = 2.0
"""A cache for all samples has room for a mean that is so many standard errors above the measured one."""
AUTO_SLACK = 4
"""If samples differ in size, `cache_bytes: auto` may take so many times what they are expected to need: a few
very large ones may not be among those that were measured. Memory is only taken when samples come."""

MOST_CHUNK_BYTES = 2**26
CHUNKS = 256
"""A cache has about so many chunks, if each has room for `ENTRIES` samples."""
ENTRIES = 16


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The memory that the samples of a run take in a cache.

    Attributes:
        num_ids: samples of the dataset.
        num_samples: samples of a pass, 1..num_ids.
        sample: spec of the samples, before the first random operation.
        label: spec of their labels.
        mean_bytes: mean size of a sample.
        error_bytes: standard error of the mean, >= 0; 0 if it is exact.
        num_measured: samples that the mean is estimated from; 0 if it is exact.
    """

    num_ids: int
    num_samples: int
    sample: SampleSpec
    label: LabelSpec
    mean_bytes: float
    error_bytes: float = 0.0
    num_measured: int = 0

    @classmethod
    def of(cls, source: PreprocessedSamples) -> CacheNeed | None:
        """The need of a run's samples; None if nothing can be kept. Reads some samples if they differ."""
        spec, num_samples = source.prepared_spec, source.num_train + source.num_validation
        if spec is None:
            return None
        known = len(source.dataset), num_samples, spec, source.dataset.label_spec
        if spec.is_static:
            return cls(*known, float(spec.max_bytes))
        measured = source.prepared_bytes(NUM_MEASURED, MEASURED_BYTES)
        if not measured:
            return None
        ids = np.concatenate([source.train_ids, source.validation_ids])
        mean, error = estimated_mean(measured, ids, source.sizes)
        return cls(*known, mean, error, len(measured) if len(measured) < num_samples else 0)

    @property
    def head_bytes(self) -> int:
        """Bytes before a sample: its shape, unless all have the same one, and its label."""
        num_axes = 0 if self.sample.is_static else len(self.sample.shape)
        return aligned(8 * num_axes + self.label.num_bytes)

    @property
    def entry_bytes(self) -> int:
        """Bytes that a sample of mean size takes, with its label."""
        return self.head_bytes + aligned(math.ceil(self.mean_bytes))

    @property
    def safe_entry_bytes(self) -> int:
        """`entry_bytes` if the mean is `NUM_ERRORS` standard errors above the measured one."""
        mean = self.mean_bytes + NUM_ERRORS * self.error_bytes
        if self.sample.is_bounded:
            mean = max(self.mean_bytes, min(mean, self.sample.max_bytes))
        return self.head_bytes + aligned(math.ceil(mean))

    @property
    def table_bytes(self) -> int:
        """Bytes of what finds a sample by its id, of the claims, and of the counters."""
        return LINE_BYTES + aligned(8 * self.num_ids) + aligned(self.num_ids)

    @property
    def least_bytes(self) -> int:
        """Bytes of a cache with room for one sample."""
        return self.table_bytes + aligned(self.entry_bytes, PAGE_BYTES)

    def too_small(self, wanted: int | Literal["auto"]) -> str | None:
        """Return that a cache of this size, > 0, holds nothing; None if it holds a sample."""
        if wanted == "auto" or wanted >= self.least_bytes:
            return None
        return (
            f"dataplane.cache_bytes: got {wanted}, which holds no sample ({self.least_bytes} would hold "
            "one); the run goes on without a cache"
        )

    def whole_bytes(self, num_writers: int) -> int:
        """Bytes of a cache with room for all samples, whichever of the writers makes them."""
        return self.table_bytes + self.pool_bytes(self.num_samples, num_writers)

    def most_bytes(self, num_writers: int) -> float:
        """Bytes that `whole_bytes` cannot exceed, whatever the sizes of the samples; infinite if unknown."""
        if self.sample.is_static:
            return self.whole_bytes(num_writers)
        if not self.sample.is_bounded:
            return math.inf
        largest = replace(self, mean_bytes=float(self.sample.max_bytes), error_bytes=0.0)
        return largest.whole_bytes(num_writers)

    def pool_bytes(self, num_samples: int, num_writers: int) -> int:
        """Bytes for so many samples, without the table."""
        pool = num_samples * self.safe_entry_bytes
        # If they differ, the last one of a chunk may not fit; and each writer may end in the middle of one.
        pool += pool // ENTRIES * (num_writers > 1 and not self.sample.is_static)
        size = pool
        while (
            whole := pool + (num_writers + 1) * self.chunk_bytes(size)
        ) > size:  # chunks grow with the size
            size = whole
        return size

    def chunk_bytes(self, pool_bytes: int) -> int:
        """Bytes that a writer gets at once from the memory for samples: those of some of mean size."""
        used = min(pool_bytes, self.num_samples * self.safe_entry_bytes)  # the rest may never be taken
        wanted = min(max(used // CHUNKS, ENTRIES * self.entry_bytes), MOST_CHUNK_BYTES)
        num_samples = max(PAGE_BYTES, min(wanted, pool_bytes // 8)) // self.entry_bytes
        return max(1, num_samples) * self.entry_bytes

    def hit_rate(self, *cache_bytes: int) -> float:
        """Share of the samples of a pass that caches of these sizes hold together, 0..1."""
        held = sum(max(0, each - self.table_bytes) // self.entry_bytes for each in cache_bytes)
        return min(1.0, held / self.num_samples)


def size_on_node(
    need: CacheNeed, wanted: int | Literal["auto"], num_writers: int, ring_bytes: int
) -> tuple[str | None, int]:
    """Return why this node cannot have the cache, or None; and how many bytes it takes.

    Args:
        need: what the samples take.
        wanted: `dataplane.cache_bytes`, > 0.
        num_writers: ranks of the node that make samples.
        ring_bytes: size of the node's ring, which does not use its memory yet.
    """
    num_bytes = granted_bytes(need, wanted, num_writers, rooms(), ring_bytes)
    if wanted == "auto":
        return None, num_bytes
    return shortage(num_bytes, *NAMED, besides=ring_bytes), num_bytes


def granted_bytes(
    need: CacheNeed,
    wanted: int | Literal["auto"],
    num_writers: int,
    known_rooms: list[Room],
    ring_bytes: int,
) -> int:
    """Return the size of a node's cache: what is wanted, as far as the samples may need it.

    Of `auto` it is at most `AUTO_SHARE` of what is left beside the ring. A given size is cut to what is left,
    without what the cache never takes, if that still holds all samples. Otherwise it may be more than what is
    left.

    Args:
        need, wanted, num_writers, ring_bytes: see `size_on_node`.
        known_rooms: the limits of the node's memory.
    """
    most = need.most_bytes(num_writers)
    if wanted == "auto":
        allowed = min(most, AUTO_SLACK * need.whole_bytes(num_writers))
        left = min((room.left_bytes - ring_bytes for room in known_rooms), default=math.inf)
        return int(max(0, min(allowed, AUTO_SHARE * left)))
    num_bytes = int(min(wanted, most))
    usable = min(
        (int(room.left_bytes - KEPT_FREE * room.total_bytes) - ring_bytes for room in known_rooms),
        default=num_bytes,
    )
    return usable if usable < num_bytes and need.hit_rate(usable) == 1.0 else num_bytes


def estimated_mean(
    measured: Mapping[int, int], ids: NDArray[np.int64], sizes: NDArray[np.float64] | None
) -> tuple[float, float]:
    """Estimate the mean size of all samples, and its standard error, from those of some.

    If the dataset declares sizes, the bytes may be in proportion to them; then their ratio is better.

    Args:
        measured: bytes by id, at least one.
        ids: of all samples, shape (n,).
        sizes: relative sizes by id that the dataset declares; None if it declares none.

    Returns: (mean, its standard error), in bytes with the padding that a sample has in memory.
    """
    found = np.array([aligned(each) for each in measured.values()], np.float64)
    mean, errors = float(found.mean()), found - found.mean()
    if sizes is not None:
        own = sizes[list(measured)]
        ratio = found.sum() / own.sum()
        if (ratio * own - found).std() < errors.std():
            mean, errors = float(ratio * sizes[ids].mean()), ratio * own - found
    num_others = 1.0 - len(found) / len(ids)
    variance = float(np.square(errors).sum()) / max(1, len(found) - 1)
    return mean, math.sqrt(variance / len(found) * num_others)
