"""How long a pass takes: limited by the slowest group, the ring, and whoever makes the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.errors import InputError


@dataclass(frozen=True, slots=True)
class PassModel:
    """The samples of a pass, and how fast they are made and read.

    Attributes:
        num_train: training samples of a pass, >= 1.
        num_validation: validation samples after them, >= 0.
        validation_speedup: how many times faster a sample is evaluated than trained, > 0. One forward pass of
            the three that a training step costs makes 3.
        ring_samples: samples that the fastest group can be ahead of the slowest, >= 0: the ring's cells.
        preprocessing_samples_per_s: rate at which one rank makes samples that no cache holds, > 0; None:
            preprocessing is never the limit.
        profile_batches: batches of a profiling run, >= 1 ([FLEET] App. B.3: 48).
        hit_rate: share of the samples that the caches of all nodes have room for, 0..1. To take one from
            there takes no time.
        num_merged: epochs that count as one pass here, >= 1.

    Raises:
        InputError: if a value is out of its range.
    """

    num_train: int
    num_validation: int = 0
    validation_speedup: float = 3.0
    ring_samples: int = 0
    preprocessing_samples_per_s: float | None = None
    profile_batches: int = 48
    hit_rate: float = 0.0
    num_merged: int = 1

    def __post_init__(self) -> None:
        counts = (
            ("num_train", 1),
            ("num_validation", 0),
            ("ring_samples", 0),
            ("profile_batches", 1),
            ("num_merged", 1),
        )
        for name, least in counts:
            if getattr(self, name) < least:
                raise InputError(f"{name}: got {getattr(self, name)}, allowed: an integer >= {least}")
        for name in ("validation_speedup", "preprocessing_samples_per_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InputError(f"{name}: got {value!r}, allowed: a number above 0")
        if not 0.0 <= self.hit_rate <= 1.0:
            raise InputError(f"hit_rate: got {self.hit_rate!r}, allowed: a number from 0 to 1")

    @property
    def num_positions(self) -> int:
        return self.num_train + self.num_validation

    def seconds(self, rate_samples_per_s: float, start: int = 0, end: int | None = None) -> float:
        """Time that a DNN with this training rate needs for positions start..end of a pass on its own.

        Args:
            rate_samples_per_s: > 0.
            start, end: offsets in the pass, 0..num_positions; None: the end of the pass.
        """
        return self._work(start, self.num_positions if end is None else end) / rate_samples_per_s

    def _work(self, start: int, end: int) -> float:
        """The positions start..end in training samples: so many take as long."""
        training = max(0, min(end, self.num_train) - start)
        validation = max(0, end - max(start, self.num_train))
        return training + validation / self.validation_speedup

    def finish_times(
        self,
        readers: Sequence[ReadingGroup],
        num_makers: int,
        num_cold: int = 1,
        num_filling: int | None = None,
    ) -> list[float]:
        """When each reader of a stream reaches the end of the pass.

        A reader gets there when it has done its own work, when the slowest reader is so close that the ring
        holds all samples between them, and when the last sample has been made. Rates are constant, so there
        are no other limits.

        Args:
            readers: groups that train this pass, at least one.
            num_makers: ranks that make the stream's samples, >= 1.
            num_cold: epochs, from this pass on, whose samples are not in the caches yet, >= 0.
            num_filling: ranks that fill the caches meanwhile, >= 1, also for others; None: `num_makers`.

        Returns: seconds on the readers' clock, in their order.
        """
        num_positions, released = self.num_positions, self._released
        works = {
            offset: (self._work(offset, released), self._work(offset, num_positions))
            for offset in {reader.offset for reader in readers}
        }
        limit = max(
            (
                reader.start_s + works[reader.offset][0] / reader.rate_samples_per_s
                for reader in readers
                if reader.offset < released
            ),
            default=0.0,
        )
        if self.preprocessing_samples_per_s is not None:
            begun = min(reader.start_s for reader in readers)
            to_make = num_positions - min(reader.offset for reader in readers)
            making_s = self._making_s(num_makers, num_cold, num_filling or num_makers)
            limit = max(limit, begun + to_make * making_s)
        return [
            max(limit, reader.start_s + works[reader.offset][1] / reader.rate_samples_per_s)
            for reader in readers
        ]

    def _making_s(self, num_makers: int, num_cold: int, num_filling: int) -> float:
        """Mean time to make a sample, with all ranks that take part; for arguments see `finish_times`."""
        assert self.preprocessing_samples_per_s is not None
        cold = min(1.0, num_cold / self.num_merged)
        effort = (1.0 - self.hit_rate) / num_makers + self.hit_rate * cold / num_filling
        return effort / self.preprocessing_samples_per_s

    def own_seconds(self, reader: ReadingGroup) -> float:
        """Time from the reader's start to the end of the pass if it never waits."""
        return self.seconds(reader.rate_samples_per_s, reader.offset)

    @property
    def _released(self) -> int:
        """The offset that the slowest reader must have reached before the last block fits into the ring."""
        return max(0, self.num_positions - self.ring_samples)


@dataclass(frozen=True, slots=True)
class ReadingGroup:
    """A trainer group at work on a pass.

    Attributes:
        start_s: when it begins.
        offset: where in the pass it begins.
        rate_samples_per_s: its training rate with its slots, > 0.
    """

    start_s: float
    offset: int
    rate_samples_per_s: float
