"""A job on parameter servers to simulate, and its machines."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcbal.errors import InputError
from hpcbal.paramserver.api.batch import DataBlocks, num_steps
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.several_blocks import size_factor

Points = Sequence[tuple[float, float]]
"""Needs of turns or data blocks of several sizes: (samples, amount), both ascending."""


@dataclass(frozen=True, slots=True)
class ServingMachine:
    """How fast an executor is.

    Attributes:
        seconds_per_sample: that computing takes, > 0.
        bandwidth: of its link, in bytes/s each way, > 0 and finite.
        service_s_per_byte: of its processor as a server, for a byte that it sends or applies, >= 0. One
            request is served after the other.

    Raises:
        InputError: an attribute is out of range.
    """

    seconds_per_sample: float
    bandwidth: float
    service_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        _check("seconds_per_sample", self.seconds_per_sample, 0 < self.seconds_per_sample < math.inf, "> 0")
        _check("bandwidth", self.bandwidth, 0 < self.bandwidth < math.inf, "> 0 bytes/s, finite")
        _check("service_s_per_byte", self.service_s_per_byte, 0 <= self.service_s_per_byte < math.inf, ">= 0")


@dataclass(frozen=True, slots=True)
class Delays:
    """Times beside computing, links and service.

    Delays of frames and messages are means of exponential distributions, see `Delay`. Frames that one rank
    gets keep their order, but for long payloads. So workers do not begin every step in one order, as they
    would without delays.

    Attributes:
        send_s: of a rank for each frame that it sends, one after the other, >= 0.
        notice_s: from the arrival of a frame until its rank handles it, >= 0: a waiting rank sleeps between
            two looks.
        control_s: of a message between an executor and the master, >= 0.
        turn_s: of a turn, beside its samples, >= 0.

    Raises:
        InputError: an attribute is out of range.
    """

    send_s: float = 0.0
    notice_s: float = 0.0
    control_s: float = 0.0
    turn_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("send_s", "notice_s", "control_s", "turn_s"):
            value = getattr(self, name)
            _check(name, value, 0 <= value < math.inf, ">= 0")


@dataclass(frozen=True, slots=True)
class ServingJob:
    """A job, as far as its speed goes. Samples and parameters have a size, and no values.

    A turn pulls dense tables whole. Of a sparse table it pulls `rows_per_sample` rows for each of its
    samples, or as many as `turn_rows` says, at most all, spread evenly over the blocks. It pushes the same
    rows.

    Attributes:
        num_samples: >= 1.
        num_data_blocks: 1..num_samples.
        mini_batch: samples of a step over all workers; in `async`, of a turn of one worker; >= 1.
        staleness: steps that a worker may be ahead; 0: `sync`; None: `async`.
        tables: at least one, with unique names.
        parameter_blocks: blocks of each table.
        max_epochs: >= 1.
        objective_every: epochs from one objective to the next, >= 1.
        rows_per_sample: by sparse table; tables that are missing, here and in `turn_rows`, are not accessed.
        turn_rows: by sparse table, points (samples, rows) of turns, both ascending, at least one. Samples
            share rows, so a turn with twice the samples needs less than twice the rows. Between points, and
            from (0, 0) to the first one, rows grow linearly; after the last one as before it.
        first_push: by table, bytes of what data blocks 0, 1, ... push once, before the first epoch, with
            numbers of rows; later blocks push what these do, in turn. Blocks differ: workers whose pushes end
            at different times wait for each other's links. Tables that are missing get no such push.
        first_growth: what n data blocks push together is n ** first_growth times as large as what one does, 0
            to 1; None: each pushes for itself.
        push_share: bytes of deltas in a push, as a share of the bytes of values in a pull, > 0.
        sample_bytes: of a sample and its state, when its block moves, >= 0.
        seed: of delays.

    Raises:
        InputError: an attribute is out of range.
        HpcbalError: a table is cut into no blocks, or into more than it has rows.
    """

    num_samples: int
    num_data_blocks: int
    mini_batch: int
    staleness: int | None
    tables: tuple[Table, ...]
    parameter_blocks: tuple[int, ...]
    max_epochs: int = 4
    objective_every: int = 1_000_000
    rows_per_sample: Mapping[str, float] = field(default_factory=dict)
    turn_rows: Mapping[str, Points] = field(default_factory=dict)
    first_push: Mapping[str, Sequence[float]] = field(default_factory=dict)
    first_growth: float | None = None
    push_share: float = 1.0
    sample_bytes: float = 0.0
    seed: int = 0
    layout: Layout = field(init=False, repr=False, compare=False)
    cut: DataBlocks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check("mini_batch", self.mini_batch, self.mini_batch >= 1, ">= 1")
        _check("staleness", self.staleness, self.staleness is None or self.staleness >= 0, ">= 0, or None")
        _check("tables", len(self.tables), len(self.tables) >= 1, "at least 1")
        _check("max_epochs", self.max_epochs, self.max_epochs >= 1, ">= 1")
        _check("objective_every", self.objective_every, self.objective_every >= 1, ">= 1")
        _check("push_share", self.push_share, 0 < self.push_share < math.inf, "> 0")
        _check("sample_bytes", self.sample_bytes, 0 <= self.sample_bytes < math.inf, ">= 0")
        sparse = {table.name for table in self.tables if table.access == "sparse"}
        for name, rows in self.rows_per_sample.items():
            _check("rows_per_sample", name, name in sparse, f"sparse tables: {', '.join(sorted(sparse))}")
            _check(f"rows_per_sample of {name}", rows, 0 <= rows < math.inf, ">= 0")
        for name, points in self.turn_rows.items():
            _check("turn_rows", name, name in sparse, f"sparse tables: {', '.join(sorted(sparse))}")
            ok = _ascend(points)
            _check(f"turn_rows of {name}", points, ok, "ascending points (samples, rows), at least one")
        names = {table.name for table in self.tables}
        for name, pushes in self.first_push.items():
            _check("first_push", name, name in names, f"tables: {', '.join(sorted(names))}")
            ok = len(pushes) >= 1 and all(0 <= num_bytes < math.inf for num_bytes in pushes)
            _check(f"first_push of {name}", pushes, ok, "bytes >= 0 of at least one block")
        growth = self.first_growth
        _check("first_growth", growth, growth is None or 0 <= growth <= 1, "0 to 1, or None")
        object.__setattr__(self, "layout", Layout(self.tables, self.parameter_blocks))
        object.__setattr__(self, "cut", DataBlocks(self.num_samples, self.num_data_blocks))

    @property
    def is_async(self) -> bool:
        """Whether turns follow no steps."""
        return self.staleness is None

    @property
    def steps(self) -> int:
        """Steps of an epoch; 1 in `async`."""
        return 1 if self.is_async else num_steps(self.num_samples, self.mini_batch)

    def rows_needed(self, table: Table, num_samples: int) -> float:
        """Rows of a table that a turn pulls."""
        if table.access == "dense":
            return float(table.num_rows)
        points = self.turn_rows.get(table.name)
        if points is None:
            return min(float(table.num_rows), num_samples * self.rows_per_sample.get(table.name, 0.0))
        return min(float(table.num_rows), _value_at(points, num_samples))

    def first_bytes(self, table: Table, blocks: Sequence[int]) -> float:
        """Bytes that data blocks, at least one, push together to a table before the first epoch."""
        pushes = self.first_push.get(table.name)
        if pushes is None:
            return 0.0
        mean = statistics.mean(pushes[block % len(pushes)] for block in blocks)
        return mean * float(len(blocks) ** (self.first_growth or 0.0))

    def pushed_together(self, blocks: Sequence[int]) -> list[Sequence[int]]:
        """The data blocks of a worker, cut into those whose first pushes go together."""
        growth = self.first_growth
        if growth is None:
            return [[block] for block in blocks]
        return self._cut(blocks, len(blocks), lambda count: float(count**growth))

    def evaluated_together(self, blocks: Sequence[int], owned: int) -> list[Sequence[int]]:
        """Some of the `owned` data blocks of a worker, cut into those whose objectives need one pull."""

        def num_bytes(count: int) -> float:
            samples = count * self.cut.size(0)
            return sum(
                self.rows_needed(table, samples) * table.row_bytes
                for table in self.tables
                if table.access == "sparse"
            )

        return self._cut(blocks, owned, num_bytes)

    def _cut(
        self, blocks: Sequence[int], owned: int, bytes_of: Callable[[int], float]
    ) -> list[Sequence[int]]:
        """As many blocks together as there is memory for.

        Args:
            bytes_of: of so many blocks, in any unit.
        """
        turn_samples = self.mini_batch * (1.0 if self.is_async else owned / self.num_data_blocks)
        most, count = size_factor(turn_samples, self.cut.size(0)) * bytes_of(1), 1
        while count < len(blocks) and bytes_of(count + 1) <= most:
            count += 1
        return [blocks[start : start + count] for start in range(0, len(blocks), count)]


def _ascend(points: Points) -> bool:
    pairs = itertools.pairwise([(0.0, 0.0), *points])
    return len(points) >= 1 and all(a[0] < b[0] and a[1] <= b[1] for a, b in pairs)


def _value_at(points: Points, num_samples: int) -> float:
    """Linear between points, and from (0, 0) to the first one; after the last one as before it."""
    lines = itertools.pairwise([(0.0, 0.0), *points])
    low, high = next(((a, b) for a, b in lines if num_samples <= b[0]), ([(0.0, 0.0), *points])[-2:])
    slope = (high[1] - low[1]) / (high[0] - low[0])
    return low[1] + slope * (num_samples - low[0])


def _check(name: str, value: object, ok: bool, allowed: str) -> None:
    if not ok:
        raise InputError(f"{name}: got {value!r}, allowed: {allowed}")
