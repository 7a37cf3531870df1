"""The status of an ensemble for users, and its part of status.json."""

# No `from __future__ import annotations`: with it, a TypedDict treats NotRequired keys as required.

from typing import NotRequired, TypedDict

from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.status import JobStatus, KindView, RunStatus, new_run_status
from hpcbal.telemetry.views.summary import short_title
from hpcbal.telemetry.views.table import cell_text, count_text, format_table, key_line, number_text


class StragglerStatus(TypedDict):
    """The wait of a group in an epoch; fields as in the ledger's `Straggler`."""

    slot: int | None
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
    """One DNN; `slots` are the slots that it holds now.

    `straggler` is what its group waited for in the last epoch; missing if there was
    none. `left_out` are slots that the DNN does not use because its group is faster without them; missing if
    there are none. `work` is that of the last epoch; missing unless samples differ in size and the group has
    several slots. `best` is the best value of `main_metric` over all epochs, None if none is known; runs of
    hpcbal 0.1 have `best_val_accuracy` instead.
    `weights` are the epochs whose weights are on disk; missing if there are none.
    """

    main_metric: NotRequired[str]
    best: NotRequired[float | None]
    best_val_accuracy: NotRequired[float | None]
    slots: list[int]
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
    name: str, num_slots: int, *, heartbeat_s: float = 5.0, now: float | None = None
) -> EnsembleStatus:
    """The status of an ensemble that starts in this process.

    Args:
        name: name of the run.
        num_slots: number of slots in the cluster.
        heartbeat_s: seconds between two updates of the file.
        now: Unix seconds (default: the current time).
    """
    return {
        **new_run_status("ensemble", name, num_slots, heartbeat_s, now),
        "round": None,
        "pass": None,
        "dnns": [],
        "preprocessing": {"preprocessors": 0, "samples_per_s": 0.0, "bad_samples": 0},
    }


def place_of(status: EnsembleStatus) -> list[str]:
    """Parts of the headline: round and pass, if there are any."""
    parts = []
    if status["round"] is not None:
        parts.append(f"round {status['round']}")
    if status["pass"] is not None:
        parts.append(f"pass {status['pass']}")
    return parts


def body_of(status: EnsembleStatus) -> list[str]:
    """The lines below the headline."""
    dnns = status["dnns"]
    return [_stream_line(status), "", *_dnn_table(dnns), *_group_lines(dnns)]


def _stream_line(status: EnsembleStatus) -> str:
    stream = status["preprocessing"]
    states: dict[str, int] = {}
    for dnn in status["dnns"]:
        states[dnn["state"]] = states.get(dnn["state"], 0) + 1
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    line = f"{count_text(len(status['dnns']), 'DNN')}: {counts}" if counts else "no DNNs yet"
    if stream["preprocessors"]:
        makers = count_text(stream["preprocessors"], "preprocessor")
        line += f"; {makers}, {stream['samples_per_s']:.0f} samples/s"
    if stream["bad_samples"]:
        line += f"; {count_text(stream['bad_samples'], 'bad sample')} left out"
    return line


def _dnn_table(dnns: list[DnnStatus]) -> list[str]:
    with_cause = any(dnn["cause"] for dnn in dnns)
    metric = dnns[0].get("main_metric", "val_accuracy") if dnns else "val_accuracy"
    headers = ["name", "state", "epochs", short_title(metric), "best", "slots", "wall time"]
    with_weights = any("weights" in dnn for dnn in dnns)
    if with_weights:
        headers.append("weights kept")
    if with_cause:
        headers.append("cause")
    rows = []
    for dnn in dnns:
        row = [
            dnn["name"],
            dnn["state"],
            f"{dnn['epochs']}/{dnn['max_epochs']}",
            number_text(dnn["metrics"].get(metric)),
            number_text(dnn.get("best", dnn.get("best_val_accuracy"))),
            " ".join(map(str, dnn["slots"])) or "-",
            duration_text(dnn["wall_time_s"]),
        ]
        if with_weights:
            row.append(_weights_text(dnn))
        rows.append([*row, _cause_text(dnn)] if with_cause else row)
    return format_table(headers, rows, right={2, 3, 4, 6})


def _weights_text(dnn: DnnStatus) -> str:
    """The epochs whose weights are on disk: `best 7 (val_loss 0.3121), last 10`."""
    weights = dnn.get("weights")
    if weights is None:
        return "-"
    parts = []
    if "best" in weights:
        best = weights["best"]
        parts.append(f"best {best['epoch']} ({best['metric']} {number_text(best['value'])})")
    if weights["last"] is not None:
        parts.append(f"last {weights['last']}")
    return ", ".join(parts)


def _group_lines(dnns: list[DnnStatus]) -> list[str]:
    """The straggler and the work of each group in its last epoch, and the slots that it leaves out."""
    lines = []
    for dnn in dnns:
        if "left_out" in dnn and dnn["state"] not in ("done", "pruned", "stopped", "failed"):
            slots = " and ".join(f"slot {slot}" for slot in dnn["left_out"])
            lines.append(f"{dnn['name']} trains without {slots}, because it is faster that way")
        straggler = dnn.get("straggler")
        if straggler is not None and dnn["slots"]:
            late = f"{straggler['late_s']:.1f} s in its last epoch"
            if straggler["slot"] is None:
                lines.append(f"{dnn['name']} spends most of its time summing gradients: {late}")
            else:
                lines.append(f"{dnn['name']} waits for slot {straggler['slot']} ({straggler['why']}): {late}")
        if "work" in dnn and dnn["slots"]:
            lines.append(f"{dnn['name']}: {_work_text(dnn['work'])}")
    return ["", *lines] if lines else []


def _work_text(work: WorkStatus) -> str:
    least, most = min(work["relative"], default=1.0), max(work["relative"], default=1.0)
    text = f"work of a slot {least:.2f} to {most:.2f} times the mean"
    if work["imbalance_left"] is not None:
        text += f", imbalance left {100 * work['imbalance_left']:.0f} %"
    if work["waited"] is not None:
        text += f", waited for each other {100 * work['waited']:.0f} % of the time"
    return f"{text} (last epoch)"


def _cause_text(dnn: DnnStatus) -> str:
    if not dnn["cause"]:
        return ""
    detail = cell_text(" ".join(key_line(dnn["detail"]).split()))
    return f"{dnn['cause']}: {detail}" if detail else dnn["cause"]


VIEW = KindView(EnsembleStatus, place_of, body_of)
