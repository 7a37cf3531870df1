"""The shared stream of samples: its size, fixed for a run, and its producers, planned per round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hpcbal.data.arrays import LINE_BYTES, aligned_empty
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cell import CellLayout
from hpcbal.errors import InputError
from hpcbal.events.ensemble import WITHOUT_ROUNDS

if TYPE_CHECKING:
    from hpcbal.config import DataplaneConfig, EnsembleConfig
    from hpcbal.data.source import PreprocessedSamples

_ANY_BYTES = 2**62
MIN_CELLS = 2
"""With fewer cells, producing and reading would take turns."""

MAX_CELL_BYTES = 2**31 - 1
"""A block travels as one MPI message, and its count is a C int before MPI 4."""

MAX_GENERATIONS = 2**22
"""Generation and block share one 64-bit word of the ring."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The properties of a stream that stay the same during a run.

    Attributes:
        num_train: training positions of a pass; they come first.
        num_positions: all positions of a pass, >= 1.
        block_samples: positions per block, >= 1; the last block of a pass may hold fewer.
        sample: spec of the samples; `max_bytes` is one sample's share of a block.
        label: spec of the labels.
        ring_bytes: memory for the blocks of one node. Each rank's cursor adds 64 bytes.
        is_sized: whether samples differ in size; their sizes then travel with them.
    """

    num_train: int
    num_positions: int
    block_samples: int
    sample: SampleSpec
    label: LabelSpec
    ring_bytes: int
    is_sized: bool = False

    @classmethod
    def of_source(cls, source: PreprocessedSamples, settings: DataplaneConfig) -> StreamSpec:
        """Make the spec for a dataset's samples; same errors as the class."""
        return cls(
            num_train=source.num_train,
            num_positions=source.num_positions,
            block_samples=settings.block_samples,
            sample=source.sample_spec,
            label=source.label_spec,
            ring_bytes=settings.ring_bytes,
            is_sized=source.is_sized,
        )

    @classmethod
    def of_run(cls, source: PreprocessedSamples, config: EnsembleConfig) -> StreamSpec:
        """Make the spec for a run; same errors as the class.

        Without rounds, the ring is only there to measure rates, each on one batch, and has room for that,
        whatever `dataplane.ring_bytes` is.
        """
        if config.schedule.paradigm not in WITHOUT_ROUNDS:
            return cls.of_source(source, config.dataplane)
        spec = cls.of_source(source, config.dataplane.model_copy(update={"ring_bytes": _ANY_BYTES}))
        most = min(max(dnn.batch_size for dnn in config.dnns), spec.num_positions)
        return replace(spec, ring_bytes=spec.bytes_to_read(most))

    def __post_init__(self) -> None:
        """Reject sizes that cannot work.

        Raises:
            InputError: if the ring holds fewer than two blocks, or a block is too large for one message.
        """
        if not 0 <= self.num_train <= self.num_positions or self.num_positions < 1:
            raise InputError(
                f"a pass has {self.num_train} training samples of {self.num_positions}; "
                "allowed: at least one sample, and at most all samples for training"
            )
        if self.block_samples < 1:
            raise InputError(f"dataplane.block_samples: got {self.block_samples}, allowed: >= 1")
        if self.sample.max_bytes < 1:
            raise InputError(
                "dataplane.max_sample_bytes: the size of the samples does not follow from their shape; give "
                "the bytes of the largest sample after preprocessing"
            )
        if self.cell_bytes > MAX_CELL_BYTES:
            raise InputError(
                f"dataplane.block_samples: a block of {self.block_samples} samples takes {self.cell_bytes} "
                f"bytes, allowed: at most {MAX_CELL_BYTES}; use fewer samples per block"
            )
        if self.ring_bytes < MIN_CELLS * self.cell_bytes:
            raise InputError(
                f"dataplane.ring_bytes: got {self.ring_bytes}, allowed: at least "
                f"{MIN_CELLS * self.cell_bytes}, two blocks of {self.block_samples} samples of at most "
                f"{self.sample.max_bytes} bytes; raise it, or lower dataplane.block_samples"
            )

    @property
    def blocks_per_pass(self) -> int:
        """Blocks of one pass; none straddles two passes."""
        return math.ceil(self.num_positions / self.block_samples)

    @property
    def layout(self) -> CellLayout:
        """Layout of the parts of a block."""
        return CellLayout.of(self.block_samples, self.sample, self.label, is_sized=self.is_sized)

    @property
    def cell_bytes(self) -> int:
        """Bytes that one block takes in the ring, including metadata."""
        return self.layout.num_bytes + LINE_BYTES

    @property
    def num_cells(self) -> int:
        """Cells of each node's ring: as many as fit, but not much more than one pass.

        Blocks that were made ahead are lost when a round ends, so small datasets do not fill a large ring
        with many passes.
        """
        return min(self.ring_bytes // self.cell_bytes, self.most_cells)

    @property
    def most_cells(self) -> int:
        """Cells of the largest ring, whatever its memory."""
        return max(MIN_CELLS, self.blocks_per_pass + 1)

    @property
    def max_read_samples(self) -> int:
        """Positions that a rank may need at once (a global batch): they must fit in the ring together.

        One block less than the ring holds, because a range may start and end inside blocks.
        """
        if self.num_cells >= self.blocks_per_pass:
            return self.num_positions
        return (self.num_cells - 1) * self.block_samples + 1

    def check_read(self, num_samples: int) -> None:
        """Reject a global batch that does not fit in the ring.

        Raises:
            InputError: if the batch is larger than `max_read_samples`.
        """
        if num_samples > self.max_read_samples:
            needed = self.bytes_to_read(num_samples)
            raise InputError(
                f"a batch of {num_samples} samples does not fit in the ring: at most {self.max_read_samples} "
                f"with dataplane.ring_bytes {self.ring_bytes}; raise it to {needed}, or lower batch_size"
            )

    def bytes_to_read(self, num_samples: int) -> int:
        """Bytes of a ring that holds so many positions, wherever they begin in a block."""
        num_cells = math.ceil((num_samples - 1) / self.block_samples) + 1
        return max(MIN_CELLS, num_cells) * self.cell_bytes

    def static_shape(self) -> tuple[int, ...] | None:
        """Shape of every sample, or None if shapes differ."""
        shape = tuple(length for length in self.sample.shape if length is not None)
        return shape if self.sample.is_static else None

    def empty_batch(self, num_samples: int) -> NDArray[Any]:
        """Fresh uninitialised memory for `num_samples` samples of static shape; starts on a cache line."""
        shape = self.static_shape()
        if shape is None:
            raise InputError(f"samples of shape {self.sample.shape} differ in size; there is no batch array")
        return aligned_empty((num_samples, *shape), self.sample.dtype)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Which ranks make the blocks of one round, and where the round starts.

    Blocks are counted from the round's first pass: block b is made by `producers[b % P]`.

    Attributes:
        generation: grows from round to round, 1..MAX_GENERATIONS-1; blocks of different rounds never mix.
        first_pass: pass of block 0.
        first_block: the first block that a reader needs: that of the earliest reader.
        producers: world ranks in order, at least one.
        training_nodes: nodes that have readers in this round.
    """

    generation: int
    first_pass: int
    first_block: int
    producers: tuple[int, ...]
    training_nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check for errors of our own caller."""
        assert 1 <= self.generation < MAX_GENERATIONS, self.generation
        assert min(self.first_block, self.first_pass) >= 0, self
        assert len(set(self.producers)) == len(self.producers) > 0, self.producers

    def first_block_of(self, producer: int) -> int:
        """First block of the `producer`-th producer (an index into `producers`)."""
        return self.first_block + (producer - self.first_block) % len(self.producers)


def round_block(spec: StreamSpec, first_pass: int, pass_index: int, offset: int) -> int:
    """Block of a position, counted from `first_pass`; the end of a pass is the next pass's first block."""
    blocks_per_pass = spec.blocks_per_pass
    inside = offset // spec.block_samples if offset < spec.num_positions else blocks_per_pass
    return (pass_index - first_pass) * blocks_per_pass + inside
