"""results.csv and the table at the end of a run."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from hpcbal.errors import InputError
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.files.utc import duration_text
from hpcbal.telemetry.views.table import count_text, format_table, number_text


@dataclass(frozen=True, slots=True)
class ResultRow:
    """What became of one DNN.

    Attributes:
        name: of the DNN.
        state: like done, failed, training, waiting.
        epochs: completed.
        best_val_accuracy: None if no epoch was completed.
        wall_time_s: time in rounds, all starts of the run together.
        slot_seconds: that time times the GPUs (slots) held.
        cause: why it failed, else empty.
    """

    name: str
    state: str
    epochs: int
    best_val_accuracy: float | None
    wall_time_s: float
    slot_seconds: float
    cause: str = ""


def write_results(path: str | os.PathLike[str], rows: Sequence[ResultRow]) -> None:
    """Replace `path` by a table of `rows`, one column per field.

    Raises:
        OutputError: if it cannot be written.
    """
    names = [field.name for field in fields(ResultRow)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow(["" if value is None else value for value in values])
    write_atomic(path, text.getvalue(), durable=True)


def read_results(path: str | os.PathLike[str]) -> list[ResultRow]:
    """The rows of a results.csv.

    Raises:
        InputError: if there is no such file or it is not one of hpcbal.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return [
                ResultRow(
                    name=row["name"],
                    state=row["state"],
                    epochs=int(row["epochs"]),
                    best_val_accuracy=float(row["best_val_accuracy"]) if row["best_val_accuracy"] else None,
                    wall_time_s=float(row["wall_time_s"]),
                    slot_seconds=float(row["slot_seconds"]),
                    cause=row["cause"],
                )
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot read: {error.strerror or error}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{os.fspath(path)}: not a results.csv of hpcbal ({error!r})") from error


def render_results(rows: Sequence[ResultRow]) -> str:
    """The table that ends a run, totals included; the cause column only if something failed."""
    with_cause = any(row.cause for row in rows)
    headers = ["name", "state", "epochs", "best val accuracy", "wall time", "GPU-slot-seconds"]
    body = [
        [
            row.name,
            row.state,
            str(row.epochs),
            number_text(row.best_val_accuracy),
            duration_text(row.wall_time_s),
            f"{row.slot_seconds:.1f}",
        ]
        for row in rows
    ]
    best = [row.best_val_accuracy for row in rows if row.best_val_accuracy is not None]
    num_done = sum(row.state == "done" for row in rows)
    totals = [
        count_text(len(rows), "DNN"),
        f"{num_done} done",
        str(sum(row.epochs for row in rows)),
        number_text(max(best)) if best else "-",
        "",
        f"{sum(row.slot_seconds for row in rows):.1f}",
    ]
    if with_cause:
        headers.append("cause")
        body = [[*cells, row.cause] for cells, row in zip(body, rows, strict=True)]
        totals.append(f"{sum(row.state == 'failed' for row in rows)} failed")
    return "\n".join(format_table(headers, body, right={2, 3, 4, 5}, totals=totals)) + "\n"
