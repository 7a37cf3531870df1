"""results.csv and the table at the end of a run."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcbal.errors import InputError
from hpcbal.kinds import ENSEMBLE, JOBS, KINDS, Kind
from hpcbal.telemetry.files.atomic_file import cannot_read, regular_file, write_atomic
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.evaluation import fold_sentences
from hpcbal.telemetry.views.kinds import Measure, is_number, measure_in
from hpcbal.telemetry.views.summary import BEST, SAVED, Number
from hpcbal.telemetry.views.table import cell_text, count_text, early_text, format_table, number_text


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The result of one job.

    Attributes:
        name: name of the job.
        state: for example done, pruned, stopped, failed, training or waiting.
        epochs: number of completed epochs.
        best: its best value of the measure of the run; None if it has none.
        wall_time_s: time in rounds, over all starts of the run.
        slot_seconds: that time multiplied by the number of slots held.
        cause: why the job failed; empty if it did not.
        numbers: further numbers by column (`is_number`).
        settings: hyper-parameters in which the jobs of the run differ, by dotted key, as text.
        best_key: the column of `best`, equal in all rows of a run; empty: that of the kind of run.
    """

    name: str
    state: str
    epochs: int
    best: float | None
    wall_time_s: float
    slot_seconds: float
    cause: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    best_key: str = ""


_COLUMNS = ("name", "state", "epochs", "wall_time_s", "slot_seconds", "cause")


def write_results(path: str | os.PathLike[str], rows: Sequence[ResultRow], kind: Kind = ENSEMBLE) -> None:
    """Replace `path` with a table of `rows`.

    The columns are those of every run, then the numbers that any row has, then the settings.

    Raises:
        OutputError: if the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    numbers = _in_order(dict.fromkeys(key for row in rows for key in row.numbers), kind)
    settings = list(dict.fromkeys(key for row in rows for key in row.settings))
    first = [
        "name",
        "state",
        "epochs",
        measure_of(rows, kind).best_key,
        "wall_time_s",
        "slot_seconds",
        "cause",
    ]
    writer.writerow([*first, *numbers, *settings])
    for row in rows:
        cells = [row.name, row.state, row.epochs, row.best, row.wall_time_s, row.slot_seconds, row.cause]
        cells += [row.numbers.get(key) for key in numbers]
        cells += [row.settings.get(key, "") for key in settings]
        writer.writerow(["" if cell is None else cell for cell in cells])
    write_atomic(path, text.getvalue(), durable=True)


def read_results(path: str | os.PathLike[str]) -> list[ResultRow]:
    """The rows of a results.csv of any kind of run.

    Raises:
        InputError: if the file cannot be read or was not written by hpcbal.
    """
    return _read(path)[0]


def read_table(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The same rows as plain values by column; settings that are numbers become numbers."""
    rows, best_key = _read(path)
    return [
        {
            "name": row.name,
            "state": row.state,
            "epochs": row.epochs,
            best_key: row.best,
            "wall_time_s": row.wall_time_s,
            "slot_seconds": row.slot_seconds,
            "cause": row.cause,
            **row.numbers,
            **{key: _setting(text) for key, text in row.settings.items()},
        }
        for row in rows
    ]


def _setting(text: str) -> Number | str:
    try:
        return _number(text)
    except ValueError:
        return text


def _read(path: str | os.PathLike[str]) -> tuple[list[ResultRow], str]:
    """The rows, and the column of the best value; errors as for `read_results`."""
    try:
        with open(path, newline="", encoding="utf-8", opener=regular_file) as file:
            rows = csv.DictReader(file)
            names = rows.fieldnames or ()
            kind, best_key = _kind_of(names)
            numbers = [key for key in names if key != best_key and is_number(key, kind)]
            settings = [key for key in names if key not in (*_COLUMNS, best_key, *numbers)]
            found = [
                ResultRow(
                    name=row["name"],
                    state=row["state"],
                    epochs=int(row["epochs"]),
                    best=_number(row[best_key]),
                    wall_time_s=_finite(row["wall_time_s"]),
                    slot_seconds=_finite(row["slot_seconds"]),
                    cause=row["cause"],
                    numbers={key: _number(row[key]) for key in numbers},
                    settings={key: row[key] or "" for key in settings},  # None in a row that is cut off
                    best_key="" if best_key == f"{BEST}{kind.metric}" else best_key,
                )
                for row in rows
            ]
            return found, best_key
    except OSError as error:
        raise InputError(cannot_read(path, error)) from error
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{os.fspath(path)}: not a results.csv of hpcbal ({error!r})") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"got {text}, allowed: a finite number")
    return value


def _number(text: str) -> Number:
    if not text:
        return None
    return int(text) if text.isdigit() else float(text)


def _kind_of(names: Sequence[str]) -> tuple[Kind, str]:
    """The kind of run, and the column of the best value; raises KeyError if there is none of any kind."""
    for kind in KINDS.values():
        if (best_key := f"{BEST}{kind.metric}") in names:
            return kind, best_key
    after = names.index("epochs") + 1 if "epochs" in names else len(names)
    if after < len(names) and is_number(names[after], ENSEMBLE):
        return ENSEMBLE, names[after]
    raise KeyError(f"{BEST}{ENSEMBLE.metric}")


def _in_order(keys: Iterable[str], kind: Kind) -> list[str]:
    """Columns of numbers: the best epoch, then metrics, then all others."""
    first, *rest = kind.numbers
    return sorted(keys, key=lambda key: 0 if key == first else 2 if key in rest else 1)


def measure_of(rows: Sequence[ResultRow], kind: Kind = ENSEMBLE) -> Measure:
    """The measure by which the jobs of these rows are compared."""
    return measure_in(kind, rows[0].best_key if rows else "")


def render_results(rows: Sequence[ResultRow], kind: Kind = ENSEMBLE) -> str:
    """The table at the end of a run, with totals; the cause column appears only if a job failed.

    It shows each job's best value, its epoch, and the last value. A note below says which file holds which
    weights.
    """
    measure = measure_of(rows, kind)
    numbers = [{**row.numbers, measure.best_key: row.best} for row in rows]
    with_last = any("best_epoch" in each for each in numbers)
    headers = ["name", "state", "epochs", measure.title]
    body = [[row.name, row.state, str(row.epochs)] for row in rows]
    for cells, each in zip(body, numbers, strict=True):
        cells.append(number_text(each.get(measure.best_key)))
        if with_last:
            epoch = each.get("best_epoch")
            cells += ["-" if epoch is None else f"{epoch:.0f}", number_text(each.get(measure.final_key))]
    states = [row.state for row in rows]
    best = [value for each in numbers if (value := each.get(measure.best_key)) is not None]
    totals = [
        count_text(len(rows), kind.job),
        f"{states.count('done')} done{early_text(states.count('pruned'), states.count('stopped'))}",
        str(sum(row.epochs for row in rows)),
        "" if kind is JOBS else number_text(measure.best(best)) if best else "-",
    ]  # jobs share machines, and losses of unlike apps have no order
    if with_last:
        headers += ["in epoch", "last"]
        totals += ["", ""]
    headers += ["wall time", f"{kind.slot}-seconds"]
    totals += ["", "" if kind is JOBS else f"{sum(row.slot_seconds for row in rows):.1f}"]
    for cells, row in zip(body, rows, strict=True):
        cells += [duration_text(row.wall_time_s), f"{row.slot_seconds:.1f}"]
    right = set(range(2, len(headers)))
    saved = [saved_text(each) for each in numbers]
    if any(saved):
        headers.append("weights kept")
        totals.append("")
        for cells, text in zip(body, saved, strict=True):
            cells.append(text or "-")
    if any(row.cause for row in rows):
        headers.append("cause")
        body = [[*cells, cell_text(row.cause)] for cells, row in zip(body, rows, strict=True)]
        totals.append(f"{sum(row.state == 'failed' for row in rows)} failed")
    lines = format_table(headers, body, right=right, totals=totals)
    folds = fold_sentences({row.name: row.best for row in rows}, measure.title)
    lines += ["", *folds] if folds else []
    if any(saved):
        lines += [
            "",
            f"best.h5 of a {kind.job} holds its best epoch by its stop rule, checkpoint.h5 its last",
        ]
    elif any(
        "best_epoch" in each and each.get(measure.final_key) != each.get(measure.best_key) for each in numbers
    ):
        lines += ["", f"{kind.checkpoint} of a {kind.job} holds its last epoch, not its best"]
    return "\n".join(lines) + "\n"


def saved_text(numbers: Mapping[str, Number]) -> str:
    """The epochs whose weights are on disk: `best 7 (0.9312), last 10`; empty if there are none."""
    best, value, last = (numbers.get(key) for key in SAVED)
    parts = []
    if best is not None:
        parts.append(f"best {best:.0f}" + ("" if value is None else f" ({number_text(value)})"))
    if last is not None:
        parts.append(f"last {last:.0f}")
    return ", ".join(parts)
