"""Emulated jobs on parameter servers, each beside its simulation: real ranks, paced computing and links.

    python bench/bench_cruise.py --json out.json

- `ps_sim_error_max`: the largest |simulated / emulated - 1| of an epoch, up to 16 executors, all modes, equal
  and unlike machines (at most 0.05). `ps_sim_errors` lists them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.figures import parser_of, write_figures
from support.starting import train

from hpcbal.paramserver.api.update import Table
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.run import simulate_roles
from hpcbal.telemetry.ledger.job_lines import JobEpochLine

ERROR_ALLOWED = 0.05
ROWS, COLUMNS = 240, 1000
BLOCKS = 48
"""Of each sort: they divide evenly by many numbers of executors, and objectives, at the end, stay short."""

EPOCHS = 7
SEEDS = range(5)
"""Of the simulated delays: in what order workers are served differs from epoch to epoch."""

DELAYS = Delays(send_s=1e-3, notice_s=1e-3, control_s=1e-3)
"""Of the emulation: ranks that wait sleep for up to 2 ms between two looks, and many share a core."""


@dataclass(frozen=True)
class Kind:
    """Equal executors."""

    count: int
    seconds_per_sample: float
    bandwidth: float


@dataclass(frozen=True)
class Case:
    """One job; the first executors work, the others serve.

    Attributes:
        staleness: 0: `sync`; None: `async`.
        turns: of each worker in an epoch, about.
        batch: samples of a worker's turn.
    """

    workers: int
    servers: int
    staleness: int | None
    kinds: tuple[Kind, ...]
    turns: int = 6
    batch: int = 4

    @property
    def num_samples(self) -> int:
        """Of an epoch."""
        return self.workers * self.turns * self.batch

    @property
    def mini_batch(self) -> int:
        """As the job's file has it."""
        return self.batch if self.staleness is None else self.batch * self.workers

    def config(self, output: Path) -> dict[str, Any]:
        """The file of the job."""
        return {
            "kind": "paramserver",
            "name": "emulated",
            "output": {"dir": str(output)},
            "app": "workloads.serving:Sized",
            "args": {"num_rows": ROWS, "num_columns": COLUMNS},
            "data": {"dataset": "workloads.serving:Empty", "args": {"num_samples": self.num_samples}},
            "mini_batch": self.mini_batch,
            "consistency": {0: "sync", None: "async"}.get(self.staleness, {"stale": self.staleness}),
            "stop": {"max_epochs": EPOCHS},
            "objective": {"every": EPOCHS},
            "blocks": {"data": BLOCKS, "parameters": BLOCKS},
            "workers": self.workers,
            "servers": self.servers,
            "tune": {"enabled": False},
            "slots": {"per_node": self.workers + self.servers},
            "checkpoint": {"interval_s": 3600},
            "machines": [
                {
                    "count": kind.count,
                    "seconds_per_sample": kind.seconds_per_sample,
                    "bandwidth": kind.bandwidth,
                }
                for kind in self.kinds
            ],
        }

    def simulated_s(self) -> float:
        """Mean epoch between the first and the last, which has the objective."""
        machines = [
            ServingMachine(kind.seconds_per_sample, kind.bandwidth)
            for kind in self.kinds
            for _ in range(kind.count)
        ]
        found = []
        for seed in SEEDS:
            job = ServingJob(
                self.num_samples,
                BLOCKS,
                self.mini_batch,
                self.staleness,
                (Table("model", ROWS, COLUMNS, "float32"),),
                (BLOCKS,),
                max_epochs=EPOCHS,
                seed=seed,
            )
            run = simulate_roles(job, machines, self.workers, self.servers, DELAYS)
            found.append(run.steady_epoch_s)
        return statistics.mean(found)

    def emulated_s(self) -> float:
        """The same of a real run."""
        with tempfile.TemporaryDirectory() as folder:
            entries = train(self.config(Path(folder) / "run"), Path(folder))
        seconds = [entry.line.seconds for entry in entries if isinstance(entry.line, JobEpochLine)]
        assert len(seconds) == EPOCHS
        return statistics.mean(seconds[1:-1])

    def __str__(self) -> str:
        mode = {0: "sync", None: "async"}.get(self.staleness, f"stale {self.staleness}")
        kinds = " + ".join(
            f"{k.count} x ({1e3 * k.seconds_per_sample:g} ms, {k.bandwidth / 1e6:g} MB/s)" for k in self.kinds
        )
        return f"({self.workers}, {self.servers}) {mode:<7} {kinds}"


def equal(workers: int, servers: int, staleness: int | None, seconds_per_sample: float, rate: float) -> Case:
    """A case of equal machines."""
    return Case(workers, servers, staleness, (Kind(workers + servers, seconds_per_sample, rate),))


UNLIKE = (Kind(4, 0.2, 4e6), Kind(2, 0.1, 12e6), Kind(2, 0.2, 12e6))
CASES = (
    equal(4, 2, None, 0.05, 5e6),
    equal(6, 2, 0, 0.05, 5e6),
    equal(6, 2, 2, 0.02, 5e6),
    Case(6, 2, None, UNLIKE),
    Case(6, 2, 0, UNLIKE),
    equal(12, 4, 0, 0.2, 1.5e6),
    equal(12, 4, None, 0.1, 3e6),
    equal(13, 3, 2, 0.2, 3e6),
    equal(8, 8, None, 0.05, 3e6),
    equal(10, 4, 0, 0.05, 4e6),
    Case(6, 2, 2, UNLIKE),
)


def compared(cases: Sequence[Case] = CASES) -> Mapping[str, Any]:
    """The keys of the comparison."""
    errors = []
    for case in cases:
        simulated_s, emulated_s = case.simulated_s(), case.emulated_s()
        errors.append(simulated_s / emulated_s - 1)
        print(
            f"{case!s:<75} emulated {emulated_s:7.2f} s  simulated {simulated_s:7.2f} s  {errors[-1]:+.1%}",
            flush=True,
        )
    worst = max(map(abs, errors))
    print(f"ps_sim_error_max {worst:.3f} (at most {ERROR_ALLOWED})")
    return {"ps_sim_error_max": worst, "ps_sim_cases": len(errors), "ps_sim_errors": errors}


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--part", choices=("truth",), default="truth", help="the only one")
    args = parser.parse_args(argv)
    result = {"load_before": os.getloadavg()[0], **compared()}
    write_figures(args.json, result)


if __name__ == "__main__":
    main()
