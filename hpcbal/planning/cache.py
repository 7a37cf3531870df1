"""Foresee the cache of decoded samples of a node: its size, and the share of samples that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcbal.config import EnsembleConfig
from hpcbal.config.schema.ensemble import AUTO

if TYPE_CHECKING:  # loads NumPy, which a plan without the dataset does not need
    from hpcbal.data.source import PreprocessedSamples
    from hpcbal.dataplane.cache_size import CacheNeed

SHARED_SHARE = 0.5
"""Share of a node's memory that /dev/shm is taken to have: Linux's default, which nodes may change."""


@dataclass(frozen=True, slots=True)
class KeptFacts:
    """Facts about what a cache keeps, from the dataset itself.

    Attributes:
        need: what the samples take; None if nothing can be kept, or with `auto` nothing has to be decoded.
        with_resize_first: what they would take with `resize` before `random_crop`; None if it is so already,
            or there is no `resize`.
        ring_bytes: the memory that the blocks take in the ring.
    """

    need: CacheNeed | None
    with_resize_first: CacheNeed | None
    ring_bytes: int

    @classmethod
    def of(cls, config: EnsembleConfig, source: PreprocessedSamples) -> KeptFacts:
        """The facts about an opened dataset; may read a few samples."""
        from hpcbal.data.dataset import is_encoded
        from hpcbal.data.spec import SampleSpec
        from hpcbal.dataplane.cache_size import CacheNeed
        from hpcbal.dataplane.stream import StreamSpec

        stream = StreamSpec.of_run(source, config)
        ring_bytes = stream.num_cells * stream.cell_bytes
        has_encoded = is_encoded(source.dataset.sample_spec)
        if config.dataplane.cache_bytes == AUTO and not has_encoded:
            return cls(None, None, ring_bytes)
        need = CacheNeed.of(source)
        names = [step.name for step in config.preprocessing]
        if not has_encoded or source.sample_spec.parts or not _crops_before_it_resizes(names):
            return cls(need, None, ring_bytes)
        resize = config.preprocessing[names.index("resize")].args
        spec = SampleSpec.of((resize["height"], resize["width"], source.sample_spec.shape[-1]), "uint8")
        labels = source.dataset.label_spec
        num_samples = source.num_train + source.num_validation
        first = CacheNeed(len(source.dataset), num_samples, spec, labels, spec.max_bytes)
        return cls(need, first, ring_bytes)


def _crops_before_it_resizes(names: Sequence[str]) -> bool:
    return "random_crop" in names and "resize" in names[names.index("random_crop") :]


@dataclass(frozen=True, slots=True)
class PlannedCache:
    """The cache of the node with most preprocessors.

    Attributes:
        wanted: `dataplane.cache_bytes`, not 0.
        facts: facts about the samples; None: the dataset was not opened.
        whole_bytes: bytes that all samples take; None: unknown, or nothing is kept.
        num_bytes: its size; None if the node decides on it.
        hit_rate: share of the samples that it finds from the second pass on, 0..1; None: unknown.
        rate_with_resize_first: the same with `resize` before `random_crop`.
        num_nodes: nodes that have such a cache.
        shared_bytes: what /dev/shm is taken to have; None: the memory of the node was not given.
    """

    wanted: int | Literal["auto"]
    facts: KeptFacts | None
    whole_bytes: int | None = None
    num_bytes: int | None = None
    hit_rate: float | None = None
    rate_with_resize_first: float | None = None
    num_nodes: int = 1
    shared_bytes: int | None = None

    @property
    def depends_on_shared_memory(self) -> bool:
        """Whether another size of /dev/shm than assumed would change the cache."""
        if self.shared_bytes is None or self.facts is None or self.num_bytes is None or self.hit_rate is None:
            return False
        if self.wanted == AUTO:
            return self.hit_rate < 1.0
        return self.num_bytes + self.facts.ring_bytes > self.shared_bytes

    @property
    def hit_rate_of_all(self) -> float | None:
        """Share of the samples that the caches of all nodes hold together, 0..1; None: unknown."""
        return None if self.hit_rate is None else min(1.0, self.num_nodes * self.hit_rate)

    @property
    def known_bytes(self) -> int:
        """Bytes that a node must have for it; none for `auto`, which takes a part of what is left."""
        return 0 if self.wanted == AUTO or self.num_bytes is None else self.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        need = None if self.facts is None else self.facts.need
        other = None if self.facts is None else self.facts.with_resize_first
        return {
            "cache_bytes": self.wanted,
            "bytes": self.num_bytes,
            "whole_bytes": self.whole_bytes,
            "sample_bytes": None if need is None else need.entry_bytes,
            "samples_measured": None if need is None else need.num_measured,
            "hit_rate": self.hit_rate,
            "hit_rate_of_all_nodes": self.hit_rate_of_all,
            "sample_bytes_with_resize_first": None if other is None else other.entry_bytes,
            "hit_rate_with_resize_first": self.rate_with_resize_first,
        }


def planned_cache(
    config: EnsembleConfig,
    facts: KeptFacts | None,
    num_writers: int,
    bytes_per_node: int | None,
    num_nodes: int = 1,
) -> PlannedCache | None:
    """Foresee the cache of a node; None if there is none.

    Args:
        config: the ensemble.
        facts: facts about its samples; None: the dataset was not opened.
        num_writers: ranks of the node that may make samples, >= 1.
        bytes_per_node: memory of the node; None: not given.
        num_nodes: nodes of the allocation.
    """
    wanted = config.dataplane.cache_bytes
    if wanted == 0 or config.data.access != "shared":
        return None
    if facts is None:
        decodes = any(step.name == "decode" for step in config.preprocessing)
        if wanted != "auto":
            return PlannedCache(wanted, None, num_bytes=wanted)
        return PlannedCache(wanted, None) if decodes else None
    shared_bytes = None if bytes_per_node is None else int(SHARED_SHARE * bytes_per_node)

    def size_and_rate(need: CacheNeed) -> tuple[int, int | None, float | None]:
        """(bytes for all samples, bytes of the cache, hit rate), as the run finds them."""
        from hpcbal.dataplane.cache_size import granted_bytes
        from hpcbal.dataplane.shared_memory import Room

        whole = need.whole_bytes(num_writers)
        limits = [limit for limit in (bytes_per_node, shared_bytes) if limit is not None]
        if wanted == AUTO and not limits:
            return whole, None, None
        known_rooms = [Room(limit, limit, "", "") for limit in limits]
        num_bytes = min(whole, granted_bytes(need, wanted, num_writers, known_rooms, facts.ring_bytes))
        return whole, num_bytes, need.hit_rate(num_bytes)

    rate_otherwise = None
    if facts.with_resize_first is not None:
        rate_otherwise = size_and_rate(facts.with_resize_first)[2]
    if facts.need is None:
        has_advice = facts.with_resize_first is not None
        return PlannedCache(wanted, facts, rate_with_resize_first=rate_otherwise) if has_advice else None
    whole, num_bytes, rate = size_and_rate(facts.need)
    return PlannedCache(wanted, facts, whole, num_bytes, rate, rate_otherwise, num_nodes, shared_bytes)


def known_hit_rate(config: EnsembleConfig, facts: KeptFacts, bytes_per_node: int | None = None) -> float:
    """`PlannedCache.hit_rate`, which does not depend on the number of writers; 0 if it is unknown."""
    cache = planned_cache(config, facts, 1, bytes_per_node)
    return 0.0 if cache is None or cache.hit_rate is None else cache.hit_rate
