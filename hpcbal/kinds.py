"""The kinds of runs: one object for each, with what all rooms ask about it (docs/adr/0010).

What a kind needs to be read, shown, started and run stands in a module of the kind's own in four packages. A
module is loaded when its part is first asked for, so a verb that only reads files loads no MPI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each is a part of a kind, in a room above this one
    from hpcbal.cli.options import Answer
    from hpcbal.config.kinds.kind import KindFile
    from hpcbal.planning.allocation import PredictedRun
    from hpcbal.runtime.kinds.kind import KindRuns
    from hpcbal.telemetry.views.status import KindView


@dataclass(frozen=True, slots=True)
class MayChange:
    """Keys that may change between two starts of a run: where and how long it trains, not what it computes.

    Attributes:
        keys: dotted keys, with all below them.
        but_not: dotted keys below these that must not.
        paths: dotted keys below which paths may change, if the fingerprint of the data stays the same.
        jobs: the key of the list of jobs, which may be added and removed; differences name a job, not its
            index. Empty if the run is one job, whose keys are at the top level.
        job: what users call a job.
        of_job: dotted keys of a job that may change, with all below them.
        may_grow: dotted key of a job whose value may increase; empty if there is none.
    """

    keys: tuple[str, ...]
    but_not: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    jobs: str = ""
    job: str = "job"
    of_job: tuple[str, ...] = ()
    may_grow: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of run.

    Attributes:
        name: as files name it, and the name of its modules.
        what: a run of this kind, in a sentence.
        job: what users call a job, singular.
        full_job: the same where nothing else says what kind of job.
        jobs: name of the folder of jobs in the output directory, and their key in status.json.
        metric: the metric by which jobs are compared where a run names no other.
        numbers: columns of results.csv that hold numbers and are of no metric.
        report_names: names in `report --json` of fields that have neutral names in the report.
        slot: what users call a slot.
        first_slot: the number of the first slot for users: that of its rank, where a slot is one.
        uses: what a slot does, by kind of use; see `report.model`.
        checkpoint: what holds the last epoch of a job.
    """

    name: str
    what: str
    job: str = "job"
    full_job: str = "parameter-server job"
    jobs: str = "jobs"
    metric: str = "objective"
    numbers: tuple[str, ...] = ("best_epoch",)
    report_names: Mapping[str, str] = field(default_factory=dict)
    slot: str = "machine"
    first_slot: int = 1
    uses: Mapping[str, str] = field(
        default_factory=lambda: {
            "training": "computing",
            "peers": "communicating, or waiting",
            "checkpoint": "checkpointing",
            "idle": "without a job",
        }
    )
    checkpoint: str = "the last checkpoint"

    @property
    def file(self) -> KindFile[Any]:
        """Return how a file of this kind becomes a configuration, and which keys may change later."""
        found: KindFile[Any] = import_module(f"hpcbal.config.kinds.{self.name}").FILE
        return found

    @property
    def view(self) -> KindView:
        """Return how the status of this kind is checked and drawn."""
        found: KindView = import_module(f"hpcbal.telemetry.views.{self.name}_table").VIEW
        return found

    @property
    def runs(self) -> KindRuns[Any, Any]:
        """Return how a run of this kind starts: its ranks, and how they open and play it."""
        found: KindRuns[Any, Any] = import_module(f"hpcbal.runtime.kinds.{self.name}").RUNS
        return found

    def verb(self, room: str) -> Callable[..., Answer]:
        """Return how a room of the command line does this kind.

        It takes the arguments, the configuration, and a function that takes warnings.
        """
        found: Callable[..., Answer] = import_module(f"hpcbal.cli.{room}.{self.name}").answer
        return found

    @property
    def predicted(self) -> Callable[..., tuple[PredictedRun, int]]:
        """Return how long a run takes on an allocation, and the number of its slots; see `prediction_of`."""
        found: Callable[..., tuple[PredictedRun, int]] = import_module(
            f"hpcbal.cli.planning.{self.name}"
        ).predicted
        return found


ENSEMBLE = Kind(
    "ensemble",
    "a run of DNNs",
    job="DNN",
    full_job="DNN",
    jobs="dnns",
    metric="val_accuracy",
    numbers=("best_epoch", "bad_samples", "saved_best_epoch", "saved_best_value", "saved_last_epoch"),
    report_names={"jobs": "dnns", "job": "dnn", "num_jobs": "num_dnns"},
    slot="slot",
    first_slot=0,
    uses={
        "training": "training",
        "data": "waiting for data",
        "peers": "waiting for other DNNs",
        "checkpoint": "checkpointing",
        "starting": "starting",
        "profiling": "profiling",
        "idle": "idle",
    },
    checkpoint="checkpoint.h5",
)
PARAMSERVER = Kind(
    "paramserver",
    "a parameter-server job",
    slot="executor",
    uses={
        "training": "computing",
        "data": "waiting for parameters",
        "peers": "serving, or waiting for others",
        "checkpoint": "checkpointing",
        "starting": "loading",
        "idle": "without a role",
    },
)
JOBS = Kind("jobs", "a run of many jobs on the same machines")
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (ENSEMBLE, PARAMSERVER, JOBS)}
DEFAULT_KIND = ENSEMBLE.name
"""The kind of a file that does not name one."""

MEMBER_NAME = re.compile(r"(.+)-fold([1-9]\d*)")
"""The name of a member of folds: that of its DNN, and the number of the fold that it leaves out."""
