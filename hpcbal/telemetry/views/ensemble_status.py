"""What the status.json of an ensemble holds beside that of every run."""

# No `from __future__ import annotations`, see `status`.

from typing import Any, NotRequired, TypedDict

from hpcbal.telemetry.views.status import JobStatus, RunStatus, new_run_status


class DnnStatus(JobStatus):
    """One DNN: `gpus` are those that it holds now.

    `straggler` is who held up its group in the last epoch (`gpu`, `why`, `late_s`); missing where nobody did.
    `left_out` are GPUs that the DNN does not use, as its group is faster without; missing if there are none.
    """

    best_val_accuracy: float | None
    gpus: list[int]
    straggler: NotRequired[dict[str, Any]]
    left_out: NotRequired[list[int]]


class PreprocessingStatus(TypedDict):
    """The shared stream: how many ranks feed it, how fast, and what could not be read."""

    preprocessors: int
    samples_per_s: float
    bad_samples: int


# `pass` is a word of Python, so this key cannot be written as a member of a class.
_Pass = TypedDict("_Pass", {"pass": int | None})


class EnsembleStatus(RunStatus, _Pass):
    """What an ensemble reports: where it is, its DNNs, and the stream that feeds them."""

    round: int | None
    dnns: list[DnnStatus]
    preprocessing: PreprocessingStatus


def new_status(
    name: str, num_gpus: int, *, heartbeat_s: float = 5.0, now: float | None = None
) -> EnsembleStatus:
    """The status of an ensemble that starts in this process.

    Args:
        name: of the run.
        num_gpus: accelerator slots of the cluster.
        heartbeat_s: how often the file will be renewed, seconds.
        now: unix seconds (default: the clock).
    """
    return {
        **new_run_status("ensemble", name, num_gpus, heartbeat_s, now),
        "round": None,
        "pass": None,
        "dnns": [],
        "preprocessing": {"preprocessors": 0, "samples_per_s": 0.0, "bad_samples": 0},
    }
