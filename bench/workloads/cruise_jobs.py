"""The jobs of Cruise's evaluation as far as their speed goes: sizes, and computing over communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.config import ParamServerConfig
from hpcbal.paramserver.contract import Table
from hpcbal.paramserver.machine.job import JobMachine
from hpcbal.runtime.jobs.tuning import Tuner
from hpcbal.simulator.serving import ServingJob, ServingMachine

BANDWIDTH = 1.25e9 / 8
"""Of an r4.xlarge, in bytes/s ([PS] Sec. 3.4.1)."""

MODES: dict[str, int | None] = {"sync": 0, "stale": 2, "async": None}
BLOCKS_PER_MACHINE = 8
"""Of each sort, as `blocks: auto` has it."""

MAX_EPOCHS = 100
"""Of the jobs that configure themselves: enough for any move to pay."""


@dataclass(frozen=True)
class App:
    """One application of [PS] Tab. 3.3 and 3.4.

    Attributes:
        num_samples: of its dataset.
        mini_batch: of a worker.
        rows, columns: of its model, in float32.
        best: workers and servers that the paper's grid search found best among 32 machines.
        starts: bad ones, and by how much Cruise shortened their epochs there (Sec. 3.4.3).
        sample_bytes: of a sample and its state, about.
    """

    num_samples: int
    mini_batch: int
    rows: int
    columns: int
    best: tuple[int, int]
    starts: dict[tuple[int, int], float]
    sample_bytes: float

    @property
    def ratio(self) -> float:
        """Time to compute a mini-batch over time to transfer the model.

        [PS] Eq. 3.5 has its optimum at W/S = sqrt(ratio), so this is the ratio of a job whose best
        configuration is the one that the paper found.
        """
        return (self.best[0] / self.best[1]) ** 2

    @property
    def model_bytes(self) -> int:
        """Size of the model."""
        return 4 * self.rows * self.columns


APPS = {
    "nmf": App(1_900_000, 10_000, 71_000, 1_000, (23, 9), {(27, 5): 0.358, (18, 14): 0.223}, 1e4),
    "mlr": App(100_000, 1_000, 160_000, 4_000, (27, 5), {(18, 14): 0.553, (23, 9): 0.087}, 1e4),
    # A twentieth of the 8.2 million documents: an epoch is as much shorter, and is as quick to simulate.
    "lda": App(410_000, 1_000, 141_000, 400, (18, 14), {(27, 5): 0.375, (23, 9): 0.174}, 1e3),
    "lasso": App(100_000, 1_000, 160_000, 4_000, (20, 12), {(27, 5): 0.427, (23, 9): 0.285}, 1e4),
}


def simulated(app: App, mode: str, num_machines: int, **changes: Any) -> tuple[ServingJob, ServingMachine]:
    """The job, and each of its equal machines.

    In `sync` and `stale` a step has the mini-batches of all machines, whatever they do: a worker's would
    change with the number of workers, and with it the algorithm.
    """
    staleness = MODES[mode]
    blocks = BLOCKS_PER_MACHINE * num_machines
    job = ServingJob(
        **{
            "num_samples": app.num_samples,
            "num_data_blocks": blocks,
            "mini_batch": app.mini_batch * (1 if staleness is None else num_machines),
            "staleness": staleness,
            "tables": (Table("model", app.rows, app.columns, "float32"),),
            "parameter_blocks": (blocks,),
            "sample_bytes": app.sample_bytes,
            **changes,
        }
    )
    seconds_per_sample = app.ratio * app.model_bytes / BANDWIDTH / app.mini_batch
    return job, ServingMachine(seconds_per_sample, BANDWIDTH)


UNLIKE_STARTS: dict[str, tuple[tuple[int, int], tuple[int, int], float]] = {
    "nmf": ((25, 2), (3, 2), 0.352),
    "mlr": ((16, 2), (12, 2), 0.583),
    "lda": ((25, 2), (3, 2), 0.413),
}
"""Workers and servers, each slow and fast, and by how much Cruise shortened epochs ([PS] Sec. 3.4.5)."""

FASTER = 4
"""An r4.4xlarge has 4 times the cores of an r4.xlarge, and here 4 times the bandwidth."""


def tuner_of(
    app: App,
    job: ServingJob,
    machine: JobMachine,
    machines: Sequence[ServingMachine] | None = None,
    min_gain: float | None = None,
) -> Tuner:
    """The tuner of a real job.

    Args:
        machines: what the file says of links; None: nothing, so that links are measured.
        min_gain: `tune.min_gain`; None: its default.
    """
    staleness = job.staleness
    config = ParamServerConfig.model_validate(
        {
            "app": "workloads.serving:Sized",
            "data": {"dataset": "workloads.serving:Empty"},
            "mini_batch": job.mini_batch,
            "consistency": {None: "async", 0: "sync"}.get(staleness, {"stale": staleness}),
            "stop": {"max_epochs": job.max_epochs},
            "links": "in_turn",  # as those of the simulation
            "machines": [{"bandwidth": each.bandwidth} for each in machines or ()],
            "tune": {} if min_gain is None else {"min_gain": min_gain},
        }
    )
    return Tuner(config, machine, job.num_samples, app.model_bytes, round(job.num_samples * job.sample_bytes))
