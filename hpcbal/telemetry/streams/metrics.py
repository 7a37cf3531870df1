"""Metrics of each job per epoch: `metrics.jsonl` and one TensorBoard file, written by rank 0.

`metrics.jsonl` is authoritative. The TensorBoard file is rebuilt from it at each start and each rewind, so it
never contains an incomplete record or an epoch that was trained again. Lines are buffered in memory for some
seconds, because parallel file systems prefer few large writes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly, write_atomic
from hpcbal.telemetry.files.json_lines import encode_line, read_json_lines, write_all
from hpcbal.telemetry.files.own_files import own_file
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.files.utc import unix_seconds, utc_text
from hpcbal.telemetry.streams.event_file import file_start, scalars_record
from hpcbal.values import EpochRecord
from hpcbal.values.metric_names import OTHER_FIELDS

log = logging.getLogger(__name__)

METRICS_SCHEMA = 1
_OWN_FIELDS = OTHER_FIELDS - {"learning_rate", "num_gpus", "num_workers"}  # the others are charted


class MetricsWriter:
    """Collects epochs of all jobs and writes them in batches.

    Args:
        run: the output directory; the files of a job are `metrics.jsonl` and `events.out.tfevents.*` in the
            folder of the job.
        flush_interval_s: `flush_if_due` writes at most this often.
        clock: monotonic seconds, for tests.
    """

    def __init__(
        self,
        run: RunDirectory,
        flush_interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._flush_interval_s = flush_interval_s
        self._clock = clock
        self._flushed_at = clock()
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._event_files: dict[str, Path] = {}  # of the jobs whose files this process has repaired

    def write(self, job: str, record: EpochRecord, extra: Mapping[str, float] | None = None) -> None:
        """Add an epoch; it is in the files after the next flush.

        Args:
            job: name of the job.
            record: the epoch; epochs of a job must be added in ascending order.
            extra: further numbers, like samples per second or the number of GPUs.
        """
        self._waiting.setdefault(job, []).append(_line_of(record, utc_text(), extra or {}))

    def flush_if_due(self) -> None:
        """Flush if `flush_interval_s` has passed since the last flush; cheap otherwise."""
        if self._clock() - self._flushed_at >= self._flush_interval_s:
            self.flush()

    def flush(self) -> None:
        """Write all buffered lines.

        Raises:
            OutputError: if a file cannot be written; the lines are kept for the next flush.
        """
        self._flushed_at = self._clock()
        for job in list(self._waiting):
            lines = self._waiting[job]
            if job not in self._event_files:
                # Lines in the file from the first of these epochs on come from a failed flush of these lines.
                self._repair(job, lines[0]["epoch"] - 1, (), {})
            try:
                _append(self._run.metrics(job), b"".join(encode_line(line) for line in lines))
                _append(self._event_files[job], b"".join(_event_of(line) for line in lines))
            except OSError as error:
                del self._event_files[job]  # the files may be damaged: the next flush repairs them first
                raise output_error(self._run.metrics(job), error) from error
            del self._waiting[job]

    def rewind(
        self,
        job: str,
        epoch: int,
        history: Sequence[EpochRecord] = (),
        more: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        """Cut the files of a job after `epoch`, from whose checkpoint the job resumes.

        Args:
            job: name of the job.
            epoch: later epochs are dropped, because they will be trained again; 0 drops all.
            history: history of the checkpoint; it supplies epochs that were not flushed before a kill.
            more: further numbers of these epochs, by pass; see `write`.

        Raises:
            OutputError: if a file cannot be written.
        """
        self._waiting.pop(job, None)
        if history or self._run.job(job).exists():  # nothing is created for a job that has not started
            self._repair(job, epoch, history, more or {})

    def close(self) -> None:
        """Flush."""
        self.flush()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repair(
        self,
        job: str,
        last_epoch: int,
        history: Iterable[EpochRecord],
        more: Mapping[int, Mapping[str, float]],
    ) -> None:
        """Rewrite both files: each epoch up to `last_epoch` once, with gaps filled from `history`."""
        path = self._run.metrics(job)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            line_by_epoch = {
                record.epoch: _line_of(record, utc_text(), more.get(record.pass_index, {}))
                for record in history
            }
            line_by_epoch.update((line["epoch"], line) for line in read_metrics(path))
            old_event_files = sorted(path.parent.glob("events.out.tfevents.*"))
        except OSError as error:
            raise output_error(path, error) from error
        lines = [line_by_epoch[epoch] for epoch in sorted(line_by_epoch) if epoch <= last_epoch]
        write_atomic(path, b"".join(encode_line(line) for line in lines))
        events = path.with_name(_event_file_name(old_event_files))
        write_atomic(events, file_start(time.time()) + b"".join(_event_of(line) for line in lines))
        for old in old_event_files:
            remove_quietly(old)
        self._event_files[job] = events


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Complete lines of a `metrics.jsonl`, in the order of the file; a missing file has no lines.

    A warning is logged if there are other lines, which are skipped.
    """
    lines = read_json_lines(path)
    usable = [line for line in lines if _is_usable(line)]
    if len(usable) < len(lines):
        log.warning("%s: %d damaged lines are skipped", os.fspath(path), len(lines) - len(usable))
    return usable


def _is_usable(line: Mapping[str, Any]) -> bool:
    """Whether the fields of a line that TensorBoard needs can be used."""
    epoch, time_text, seconds = line.get("epoch"), line.get("time"), line.get("seconds")
    try:
        unix_seconds(time_text if isinstance(time_text, str) else "")
        float(0.0 if seconds is None else seconds)
    except (ValueError, TypeError, OverflowError):
        return False
    return type(epoch) is int and 0 < epoch < 1 << 63


def _line_of(record: EpochRecord, time_text: str, extra: Mapping[str, float]) -> dict[str, Any]:
    numbers = {**extra, **record.metrics}
    return {
        "schema": METRICS_SCHEMA,
        "epoch": record.epoch,
        "pass_index": record.pass_index,
        "time": time_text,
        "seconds": float(record.seconds),
        **{name: value for name, value in numbers.items() if name not in _OWN_FIELDS},
    }


def _event_of(line: Mapping[str, Any]) -> bytes:
    """The TensorBoard record of one line; null (NaN in the run) is shown as NaN."""
    scalars = {"seconds": float(line.get("seconds") or 0.0)}
    for name, value in line.items():
        if name not in _OWN_FIELDS and (value is None or isinstance(value, int | float)):
            with contextlib.suppress(OverflowError):  # an integer that no float can hold
                scalars[name] = math.nan if value is None else float(value)
    return scalars_record(line["epoch"], scalars, unix_seconds(line["time"]))


def _event_file_name(old: Sequence[Path]) -> str:
    """A name that TensorBoard reads after those of `old`; it reads files in the order of their names."""
    latest = 0
    for path in old:
        number = path.name.split(".")[3]
        latest = max(latest, int(number) if number.isdigit() else 0)
    return f"events.out.tfevents.{max(int(time.time()), latest + 1):010d}.hpcbal"


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0, opener=own_file) as file:
        write_all(file, data)
