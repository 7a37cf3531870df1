"""The job as every executor knows it: the app, how samples and tables are cut, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcbal.paramserver.api import App, DataBlocks, Table, num_steps, step_samples, tables_of
from hpcbal.paramserver.store.layout import Layout


@dataclass(frozen=True, slots=True)
class EmulatedMachine:
    """How fast an executor is to be.

    Attributes:
        seconds_per_sample: that computing takes at speed 1; None: computing is not paced.
        speed: > 0.
        bytes_per_s: of its link in each direction; None: the link is not paced.
    """

    seconds_per_sample: float | None = None
    speed: float = 1.0
    bytes_per_s: float | None = None


@dataclass(slots=True)
class JobSetup:
    """A job, the same on every executor.

    Attributes:
        app: this executor's instance.
        seed: of the run.
        mini_batch: samples of a step, or in `async` of a turn.
        cut: how samples are cut into data blocks.
        layout: how tables are cut into parameter blocks.
        staleness: steps that a worker may be ahead of the slowest data block; None: `async`, no steps at all.
        memory_bytes: most bytes of message buffers; None: no limit.
    """

    app: App
    seed: int
    mini_batch: int
    cut: DataBlocks
    layout: Layout
    staleness: int | None = 0
    memory_bytes: int | None = None
    tables: dict[str, Table] = field(init=False)
    steps: int = field(init=False)
    _step_samples: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = tables_of(self.app)
        self.steps = num_steps(self.cut.num_samples, self.mini_batch)

    @property
    def is_async(self) -> bool:
        """Whether turns follow no steps."""
        return self.staleness is None

    def samples_of_step(self, step: int) -> int:
        """Samples of a step of an epoch, over all workers."""
        if step not in self._step_samples:
            self._step_samples[step] = step_samples(self.cut, step, self.steps)
        return self._step_samples[step]
