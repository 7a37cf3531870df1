"""The part of status.json that only ensembles have."""

# No `from __future__ import annotations`, see `status`.

from typing import NotRequired, TypedDict

from hpcbal.telemetry.views.status import JobStatus, RunStatus, new_run_status


class StragglerStatus(TypedDict):
    """What a group waited for in an epoch; fields as in the ledger's `Straggler`."""

    gpu: int | None
    why: str
    late_s: float


class WorkStatus(TypedDict):
    """The work of a group's slots in an epoch, and the imbalance that is left; fields as in `GroupWork`."""

    relative: list[float]
    imbalance_left: float | None
    waited: float | None


class BestStatus(TypedDict):
    """The epoch whose weights are kept as the best ones: number, metric of the stop rule, its value."""

    epoch: int
    metric: str
    value: float | None


class WeightsStatus(TypedDict):
    """The epochs whose weights are on disk; `best` is missing and `last` null if they are not kept."""

    best: NotRequired[BestStatus]
    last: int | None


class DnnStatus(JobStatus):
    """One DNN; `gpus` are the GPUs that it holds now.

    `straggler` is what its group waited for in the last epoch; missing if there was
    none. `left_out` are GPUs that the DNN does not use because its group is faster without them; missing if
    there are none. `work` is that of the last epoch; missing unless samples differ in size and the group has
    several slots. `best` is the best value of `main_metric` over all epochs, None if none is known; runs of
    hpcbal 0.1 have `best_val_accuracy` instead.
    `weights` are the epochs whose weights are on disk; missing if there are none.
    """

    main_metric: NotRequired[str]
    best: NotRequired[float | None]
    best_val_accuracy: NotRequired[float | None]
    gpus: list[int]
    straggler: NotRequired[StragglerStatus]
    work: NotRequired[WorkStatus]
    left_out: NotRequired[list[int]]
    weights: NotRequired[WeightsStatus]


class PreprocessingStatus(TypedDict):
    """The shared stream: the number of preprocessors, their rate, and the number of broken samples."""

    preprocessors: int
    samples_per_s: float
    bad_samples: int


# `pass` is a keyword of Python, so this key cannot be a class member.
_Pass = TypedDict("_Pass", {"pass": int | None})


class EnsembleStatus(RunStatus, _Pass):
    """The status of an ensemble: its round and pass, its DNNs, and the stream that feeds them."""

    round: int | None
    dnns: list[DnnStatus]
    preprocessing: PreprocessingStatus


def new_status(
    name: str, num_gpus: int, *, heartbeat_s: float = 5.0, now: float | None = None
) -> EnsembleStatus:
    """The status of an ensemble that starts in this process.

    Args:
        name: name of the run.
        num_gpus: number of accelerator slots in the cluster.
        heartbeat_s: seconds between two updates of the file.
        now: Unix seconds (default: the current time).
    """
    return {
        **new_run_status("ensemble", name, num_gpus, heartbeat_s, now),
        "round": None,
        "pass": None,
        "dnns": [],
        "preprocessing": {"preprocessors": 0, "samples_per_s": 0.0, "bad_samples": 0},
    }
