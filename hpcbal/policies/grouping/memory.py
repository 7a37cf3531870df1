"""How much memory jobs need on their machines, and which of them fit together ([PS] Sec. 4.3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    """

    input_bytes: float = 0.0
    model_bytes: float = 0.0
    step_bytes: float = 0.0
    work_bytes: float = 0.0
    data_blocks: int | None = None
    parameter_blocks: int | None = None

    def on(self, machines: int) -> float:
        """Bytes on that one of so many machines that needs most.

        Args:
            machines: >= 1.
        """
        samples = _largest_share(self.data_blocks, machines)
        parameters = _largest_share(self.parameter_blocks, machines)
        return (
            self.input_bytes * samples
            + self.model_bytes * parameters
            + self.step_bytes / machines
            + self.work_bytes
        )


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What every machine has.

    Attributes:
        limit_bytes: of a machine; None: as much as anybody needs.
    """

    limit_bytes: float | None = None

    def holds(self, jobs: Iterable[JobMemory], machines: int) -> bool:
        """Whether jobs fit on the same machines together."""
        return self.limit_bytes is None or sum(job.on(machines) for job in jobs) <= self.limit_bytes

    def least_machines(self, job: JobMemory, most: int) -> int | None:
        """The fewest machines on which a job fits alone; None: it does not fit on `most`, which is >= 1."""
        return next((count for count in range(1, most + 1) if self.holds([job], count)), None)


def _largest_share(blocks: int | None, machines: int) -> float:
    return 1 / machines if blocks is None else -(-blocks // machines) / blocks
