"""results.csv and the table at the end of a run."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.errors import InputError
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.files.utc import duration_text
from hpcbal.telemetry.views.kinds import ENSEMBLE, VIEWS, KindView
from hpcbal.telemetry.views.table import cell_text, count_text, format_table, number_text


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The result of one job.

    Attributes:
        name: name of the job.
        state: for example done, failed, training or waiting.
        epochs: number of completed epochs.
        best: its best value of the metric that the kind of run defines; None if no epoch was completed.
        wall_time_s: time in rounds, over all starts of the run.
        slot_seconds: that time multiplied by the number of GPUs (slots) held.
        cause: why the job failed; empty if it did not.
    """

    name: str
    state: str
    epochs: int
    best: float | None
    wall_time_s: float
    slot_seconds: float
    cause: str = ""


def write_results(path: str | os.PathLike[str], rows: Sequence[ResultRow], view: KindView = ENSEMBLE) -> None:
    """Replace `path` with a table of `rows`, one column per field; `view` names the column of the best value.

    Raises:
        OutputError: if the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "state", "epochs", view.best_key, "wall_time_s", "slot_seconds", "cause"])
    for row in rows:
        best = "" if row.best is None else row.best
        writer.writerow([row.name, row.state, row.epochs, best, row.wall_time_s, row.slot_seconds, row.cause])
    write_atomic(path, text.getvalue(), durable=True)


def read_results(path: str | os.PathLike[str]) -> list[ResultRow]:
    """The rows of a results.csv of any kind of run.

    Raises:
        InputError: if the file cannot be read or was not written by hpcbal.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            best_key = _best_key(rows.fieldnames or ())
            return [
                ResultRow(
                    name=row["name"],
                    state=row["state"],
                    epochs=int(row["epochs"]),
                    best=float(row[best_key]) if row[best_key] else None,
                    wall_time_s=_finite(row["wall_time_s"]),
                    slot_seconds=_finite(row["slot_seconds"]),
                    cause=row["cause"],
                )
                for row in rows
            ]
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot read: {error.strerror or error}") from error
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{os.fspath(path)}: not a results.csv of hpcbal ({error!r})") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"got {text}, allowed: a finite number")
    return value


def _best_key(names: Sequence[str]) -> str:
    """The column of the best value; raises KeyError if `names` has none of any kind."""
    found = [view.best_key for view in VIEWS.values() if view.best_key in names]
    if not found:
        raise KeyError(ENSEMBLE.best_key)
    return found[0]


def render_results(rows: Sequence[ResultRow], view: KindView = ENSEMBLE) -> str:
    """The table at the end of a run, with totals; the cause column appears only if a job failed."""
    with_cause = any(row.cause for row in rows)
    headers = ["name", "state", "epochs", view.best_title, "wall time", "slot-seconds"]
    body = [
        [
            row.name,
            row.state,
            str(row.epochs),
            number_text(row.best),
            duration_text(row.wall_time_s),
            f"{row.slot_seconds:.1f}",
        ]
        for row in rows
    ]
    best = [row.best for row in rows if row.best is not None]
    num_done = sum(row.state == "done" for row in rows)
    totals = [
        count_text(len(rows), view.job),
        f"{num_done} done",
        str(sum(row.epochs for row in rows)),
        number_text(view.best(best)) if best else "-",
        "",
        f"{sum(row.slot_seconds for row in rows):.1f}",
    ]
    if with_cause:
        headers.append("cause")
        body = [[*cells, cell_text(row.cause)] for cells, row in zip(body, rows, strict=True)]
        totals.append(f"{sum(row.state == 'failed' for row in rows)} failed")
    return "\n".join(format_table(headers, body, right={2, 3, 4, 5}, totals=totals)) + "\n"
