"""Show the status of many parameter-server jobs to users: each job, and which of them share machines."""

from __future__ import annotations

from collections import Counter

from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.paramserver_status import GroupStatus, JobsStatus, PsJobStatus
from hpcbal.telemetry.views.status import KindView
from hpcbal.telemetry.views.table import cell_text, count_text, format_table, key_line, number_text


def place_of(status: JobsStatus) -> list[str]:
    """Parts of the headline: how many jobs have ended."""
    done = sum(job["state"] == "done" for job in status["jobs"])
    return [f"{done} of {count_text(len(status['jobs']), 'job')} done"] if status["jobs"] else []


def body_of(status: JobsStatus) -> list[str]:
    """The lines below the headline."""
    states = Counter(job["state"] for job in status["jobs"])
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    lines = [f"{count_text(len(status['jobs']), 'job')}: {counts}" if counts else "no jobs yet"]
    if status["jobs"]:
        lines += ["", *_job_lines(status["jobs"])]
    if status["groups"]:
        lines += ["", *_group_lines(status["groups"])]
    return lines


def _job_lines(jobs: list[PsJobStatus]) -> list[str]:
    with_cause = any(job["cause"] for job in jobs)
    with_disk = any(job.get("spilled_bytes") for job in jobs)
    headers = ["name", "state", "epochs", "metric", "value", "best", "wall time"]
    headers += ["on disk"] if with_disk else []
    rows = []
    for job in jobs:
        metric = job["main_metric"]
        row = [
            job["name"],
            job["state"],
            f"{job['epochs']}/{job['max_epochs']}",
            metric,
            number_text(job["metrics"].get(metric)),
            number_text(job["best"]),
            duration_text(job["wall_time_s"]),
            *([f"{job.get('alpha', 0.0):.0%}"] if with_disk else []),
        ]
        detail = cell_text(" ".join(key_line(job["detail"]).split()))
        rows.append([*row, f"{job['cause']}: {detail}" if job["cause"] else ""] if with_cause else row)
    return format_table(
        [*headers, "cause"] if with_cause else headers,
        rows,
        right={2, 4, 5, 6, 7} if with_disk else {2, 4, 5, 6},
    )


def _group_lines(groups: list[GroupStatus]) -> list[str]:
    headers = ("group", "machines", "iteration", "predicted")
    rows = [
        [
            " ".join(group["jobs"]),
            " ".join(map(str, group["machines"])),
            _seconds(group["measured_s"]),
            _seconds(group["predicted_s"]),
        ]
        for group in groups
    ]
    return format_table(headers, rows, right={2, 3})


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{number_text(value)} s"


VIEW = KindView(JobsStatus, place_of, body_of)
