"""Compare the files of a run bit by bit with those of an undisturbed one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.events.ensemble import EpochDone
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.dnn_lines import DnnDoneLine
from hpcbal.telemetry.ledger.file import read_ledger
from hpcbal.telemetry.ledger.run import RunFinishedLine, RunStartedLine
from hpcbal.telemetry.views.results import ResultRow, read_results

Epochs = Mapping[int, Mapping[str, float | None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run, without times.

    Attributes:
        weights: arrays of the checkpoint by name, by DNN.
        history: (epoch, pass, metrics) of the checkpoint, by DNN.
        epochs: metrics in the ledger by pass, by DNN; the last line of a pass counts.
        results: (state, number of epochs) in results.csv, by DNN.
        rows: what metrics.jsonl has of each epoch, by DNN.
    """

    weights: Mapping[str, Mapping[str, NDArray[Any]]]
    history: Mapping[str, list[tuple[int, int, Mapping[str, float]]]]
    epochs: Mapping[str, Epochs]
    results: Mapping[str, tuple[str, int]]
    rows: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)


def outcome_of(out: Path, of_speeds: Collection[str] = ()) -> Outcome:
    """Read the output of a finished run, without these columns of metrics.jsonl.

    Raises:
        HpcbalError: if a file is damaged.
    """
    weights: dict[str, Mapping[str, Any]] = {}
    history: dict[str, list[tuple[int, int, Mapping[str, float]]]] = {}
    of_epochs: dict[str, list[Mapping[str, Any]]] = {}
    for directory in sorted((out / "dnns").iterdir()):
        text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
        of_epochs[directory.name] = [_without(json.loads(line), of_speeds) for line in text.splitlines()]
        state, _ = read_checkpoint(directory)
        if state is not None:
            weights[directory.name] = dict(state.arrays)
            history[directory.name] = [(r.epoch, r.pass_index, dict(r.metrics)) for r in state.history]
    rows: list[ResultRow] = read_results(out / "results.csv")
    epochs = _epochs(read_ledger(out / "ledger.jsonl"))
    return Outcome(weights, history, epochs, {row.name: (row.state, row.epochs) for row in rows}, of_epochs)


def difference(got: Outcome, wanted: Outcome) -> str | None:
    """The first difference between two runs; None if there is none, to the last bit."""
    if got.weights.keys() != wanted.weights.keys():
        return f"checkpoints of {sorted(got.weights)}"
    for name, arrays in wanted.weights.items():
        mine = got.weights[name]
        if mine.keys() != arrays.keys():
            return f"{name}: arrays {sorted(mine.keys() ^ arrays.keys())}"
        for key, array in arrays.items():
            if mine[key].tobytes() != array.tobytes():
                return f"{name}: {key} differs{_by(mine[key], array)}"
        if got.history[name] != wanted.history[name]:
            return f"{name}: the history of its checkpoint differs"
    if got.epochs != wanted.epochs:
        return f"epochs of the ledger differ: {_first(got.epochs, wanted.epochs)}"
    if got.results != wanted.results:
        return f"results.csv differs: {dict(got.results)}"
    for name, rows in wanted.rows.items():
        for mine_of_epoch, row in itertools.zip_longest(got.rows.get(name, ()), rows):
            if mine_of_epoch != row:
                return f"{name}: metrics.jsonl differs: {mine_of_epoch}, not {row}"
    return None


def ledger_fault(out: Path) -> str | None:
    """Return the fault in the ledger of a finished run; None if it adds up and the lock is gone."""
    if (out / "run.lock").exists():
        return "run.lock is still there"
    entries = read_ledger(out / "ledger.jsonl")
    lines = [entry.line for entry in entries]
    if [entry.seq for entry in entries] != list(range(len(entries))):
        return "its lines are not numbered one by one"
    last = lines[-1]
    if not isinstance(last, RunFinishedLine) or (last.outcome, last.exit_code) != ("done", 0):
        return f"its last line is {last}"
    ends = 0
    for line in lines:
        ends = 0 if isinstance(line, RunStartedLine) else ends + isinstance(line, RunFinishedLine)
        if ends > 1:
            return "a start has two ends"
    seen: dict[tuple[str, int], str] = {}
    for line in lines:
        if isinstance(line, EpochDone):
            metrics = str(dict(line.metrics))  # as text, because NaN does not equal NaN
            if seen.setdefault((line.dnn_id, line.pass_index), metrics) != metrics:
                return f"{line.dnn_id}: pass {line.pass_index} was trained twice with different metrics"
    done = {line.dnn_id for line in lines if isinstance(line, DnnDoneLine)}
    if done != {name for name, _ in seen}:
        return f"only {sorted(done)} are done"
    return None


def _epochs(entries: list[Entry]) -> dict[str, dict[int, Mapping[str, float | None]]]:
    found: dict[str, dict[int, Mapping[str, float | None]]] = {}
    for entry in entries:
        if isinstance(entry.line, EpochDone):
            found.setdefault(entry.line.dnn_id, {})[entry.line.pass_index] = {
                name: value if math.isfinite(value) else None for name, value in entry.line.metrics.items()
            }
    return found


def _without(row: Mapping[str, Any], of_speeds: Collection[str]) -> Mapping[str, Any]:
    return {key: value for key, value in row.items() if key not in ("time", "seconds", *of_speeds)}


def _by(mine: NDArray[Any], theirs: NDArray[Any]) -> str:
    if mine.shape != theirs.shape or not np.issubdtype(theirs.dtype, np.floating):
        return ""
    return f" by up to {np.abs(mine - theirs).max():.2g}"


def _first(got: Mapping[str, Epochs], wanted: Mapping[str, Epochs]) -> str:
    for name, passes in wanted.items():
        mine = got.get(name, {})
        for index in sorted(passes.keys() | mine.keys()):
            if mine.get(index) != passes.get(index):
                return f"{name}: pass {index}: {mine.get(index)}, not {passes.get(index)}"
    return f"DNNs {sorted(got)}"
