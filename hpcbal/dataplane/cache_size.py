"""How much memory a cache of samples takes, and how much of it a node has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpcbal.data.arrays import LINE_BYTES
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cell import aligned
from hpcbal.dataplane.shared_memory import PAGE_BYTES, Room, rooms, shortage

if TYPE_CHECKING:
    from hpcbal.data.source import PreprocessedSamples

AUTO_SHARE = 0.5
"""Most of the memory that is left when the run starts that `cache_bytes: auto` takes."""

NAMED = ("the cache of decoded samples", "dataplane.cache_bytes")

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
    """

    num_ids: int
    num_samples: int
    sample: SampleSpec
    label: LabelSpec
    mean_bytes: float

    @classmethod
    def of(cls, source: PreprocessedSamples) -> CacheNeed | None:
        """The need of a run's samples; None if nothing can be kept. May read a few samples."""
        spec = source.prepared_spec
        if spec is None or not (mean_bytes := source.prepared_bytes()):
            return None
        dataset = source.dataset
        return cls(
            len(dataset), source.num_train + source.num_validation, spec, dataset.label_spec, mean_bytes
        )

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

    def pool_bytes(self, num_samples: int, num_writers: int) -> int:
        """Bytes for so many samples, without the table."""
        pool = num_samples * self.entry_bytes
        # In each chunk, the last sample may not fit; and each writer may end in the middle of one.
        pool += pool // ENTRIES * (num_writers > 1)
        size = pool
        while (
            whole := pool + (num_writers + 1) * self.chunk_bytes(size)
        ) > size:  # chunks grow with the size
            size = whole
        return size

    def chunk_bytes(self, pool_bytes: int) -> int:
        """Bytes that a writer gets at once from the memory for samples."""
        wanted = min(max(pool_bytes // CHUNKS, ENTRIES * self.entry_bytes), MOST_CHUNK_BYTES)
        return aligned(max(PAGE_BYTES, min(wanted, pool_bytes // 8)), PAGE_BYTES)

    def hit_rate(self, *cache_bytes: int) -> float:
        """Share of the samples of a pass that caches of these sizes hold together, 0..1."""
        held = sum(max(0, each - self.table_bytes) // self.entry_bytes for each in cache_bytes)
        return min(1.0, held / self.num_samples)


def size_on_node(
    need: CacheNeed, wanted: int | Literal["auto"], num_writers: int, ring_bytes: int
) -> tuple[str | None, int]:
    """Return why this node cannot have the cache, or None; and how many bytes it takes.

    Args:
        need: what the samples take; a cache is not larger than that, or where samples differ in size, so that
            their mean is not known exactly, than twice that.
        wanted: `dataplane.cache_bytes`, > 0.
        num_writers: ranks of the node that make samples.
        ring_bytes: size of the node's ring, which does not use its memory yet.
    """
    whole = need.whole_bytes(num_writers)
    if wanted == "auto":
        return None, min(whole, auto_bytes(rooms(), ring_bytes, whole))
    num_bytes = min(wanted, whole if need.sample.is_static else 2 * whole)
    return shortage(num_bytes, *NAMED, besides=ring_bytes), num_bytes


def auto_bytes(known_rooms: list[Room], ring_bytes: int, most: int) -> int:
    """Bytes that `cache_bytes: auto` allows on a node: `AUTO_SHARE` of what is left beside the ring.

    Args:
        known_rooms: the limits of the node's memory.
        ring_bytes: size of the ring, which does not use its memory yet.
        most: what is returned if no limit is known.
    """
    left = [room.left_bytes - ring_bytes for room in known_rooms]
    return max(0, int(AUTO_SHARE * min(left))) if left else most
