"""How much memory jobs need on their machines, and which of them fit together ([PS] Sec. 4.3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BLOCKS_AT_ONCE = 2
"""Blocks that a job has whole in memory to read from disk: one and its rearranged copy, or the next one."""

RESERVE = 0.03
"""Share of a machine's memory that is left free if it can be: what comes in messages is not known before."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What a job keeps in memory, as far as it is known before the job runs.

    Attributes:
        input_bytes: of all samples and the app's state of them, over all machines.
        model_bytes: of all parameters, over all machines.
        step_bytes: of the rows and updates of a step, over all machines.
        work_bytes: of dense tables, updates and messages, on each machine.
        data_blocks, parameter_blocks: into which samples and parameters are cut, >= 1; shares of machines are
            whole blocks. None: any shares.
        batch_bytes: of the samples of a step, over all machines.
    """

    input_bytes: float = 0.0
    model_bytes: float = 0.0
    step_bytes: float = 0.0
    work_bytes: float = 0.0
    data_blocks: int | None = None
    parameter_blocks: int | None = None
    batch_bytes: float = 0.0

    def on(self, machines: int, alpha: float = 0.0) -> float:
        """Bytes on that one of so many machines that needs most.

        Args:
            machines: >= 1.
            alpha: share of the data blocks that is on disk, 0 to 1. A job with blocks on disk needs room to
                read ahead, and to rearrange a block.
        """
        samples = self.input_bytes * _largest_share(self.data_blocks, machines)
        if alpha:
            samples = min(samples, samples * (1 - alpha) + self.reading_on(machines))
        return samples + self.fixed_on(machines)

    def fixed_on(self, machines: int) -> float:
        """Bytes on each of so many machines that are not of samples which wait for their turn."""
        parameters = _largest_share(self.parameter_blocks, machines)
        return (
            self.model_bytes * parameters + (self.step_bytes + self.batch_bytes) / machines + self.work_bytes
        )

    def reading_on(self, machines: int) -> float:
        """Bytes on each of so many machines that a job takes to read from disk."""
        return self.batch_bytes / machines + BLOCKS_AT_ONCE * self.block_bytes

    @property
    def block_bytes(self) -> float:
        """Of a data block."""
        return self.input_bytes / self.data_blocks if self.data_blocks else 0.0


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What every machine has.

    Attributes:
        limit_bytes: of a machine; None: as much as anybody needs.
        alpha: share of its data blocks that every job has on disk; None: as large a share as it takes.
    """

    limit_bytes: float | None = None
    alpha: float | None = 0.0

    def holds(self, jobs: Iterable[JobMemory], machines: int) -> bool:
        """Whether jobs fit on the same machines together."""
        return (
            self.limit_bytes is None or sum(self.least_of(job, machines) for job in jobs) <= self.limit_bytes
        )

    def leaves_reserve(self, num_bytes: float) -> bool:
        """Whether jobs that take so many bytes of a machine leave the reserve free."""
        return self.limit_bytes is None or num_bytes <= (1 - RESERVE) * self.limit_bytes

    def least_of(self, job: JobMemory, machines: int) -> float:
        """Bytes that a job takes at least on each of so many machines."""
        return job.on(machines, 1.0 if self.alpha is None else self.alpha)

    def usual_of(self, job: JobMemory, machines: int) -> float:
        """Bytes that a job takes on each of so many machines if it is not short of memory."""
        return job.on(machines, self.alpha or 0.0)

    def least_machines(self, job: JobMemory, most: int) -> int | None:
        """The fewest machines on which a job fits alone; None: it does not fit on `most`, which is >= 1."""
        return next((count for count in range(1, most + 1) if self.holds([job], count)), None)


def _largest_share(blocks: int | None, machines: int) -> float:
    return 1 / machines if blocks is None else -(-blocks // machines) / blocks
