"""What data a rank holds: the facts of the stream, its node's ring, and the samples if it makes some."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.config import EnsembleConfig
from hpcbal.data.source import SampleSource
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamSpec


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What all ranks know of the data, fixed for the run.

    Attributes:
        spec: the shape of the shared stream.
        num_classes: of the dataset.
        fingerprint: names the data and their preprocessing; checkpoints carry it.
        max_broken: broken samples that a pass may have; with more the scheduler ends the run.
    """

    spec: StreamSpec
    num_classes: int
    fingerprint: str
    max_broken: float

    @classmethod
    def of(cls, config: EnsembleConfig, source: SampleSource) -> StreamFacts:
        """The facts of `source`, on a rank that has it."""
        spec = StreamSpec.of_source(source, config.dataplane)
        max_broken = config.data.max_bad_fraction * spec.num_positions
        return cls(spec, source.num_classes, source.fingerprint, max_broken)


@dataclass(frozen=True, slots=True)
class RankData:
    """What one rank holds.

    Attributes:
        facts: equal on all ranks.
        ring: of this rank's node.
        source: of the samples; None on ranks that only read the ring.
    """

    facts: StreamFacts
    ring: NodeRing
    source: SampleSource | None
