"""Metrics of each job per epoch: `metrics.jsonl` and one TensorBoard file, written by rank 0.

The format is small and has not changed since 2015: TFRecords of protocol-buffer messages. Writing it here
(70 lines) avoids a dependency: `tensorboard` imports TensorFlow for writing if that is installed, and
`tensorboardX` pins the version of protobuf. The tests read the files back with TensorBoard's own code.

Source: tensorflow/core/lib/io/record_writer.h (framing), tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto (messages; field numbers in the comments below).

`metrics.jsonl` is authoritative. The TensorBoard file is rebuilt from it at each start and each rewind, so it
never contains an incomplete record or an epoch that was trained again. Lines are buffered in memory for some
seconds, because parallel file systems prefer few large writes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcbal.events.history import OTHER_FIELDS, EpochRecord
from hpcbal.telemetry.files.atomic_file import (
    make_inside,
    output_error,
    own_file,
    remove_quietly,
    write_atomic,
)
from hpcbal.telemetry.files.json_lines import encode_line, read_json_lines, unix_seconds, utc_text, write_all
from hpcbal.telemetry.files.run_directory import RunDirectory

log = logging.getLogger(__name__)


_CRC32C_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC32C_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC32C_TABLE = _make_table()


def file_start(wall_time_s: float) -> bytes:
    """The first records of a file.

    The second record makes a running TensorBoard discard what it read from earlier files of this directory,
    because the new file contains all of it.
    """
    version = _double(1, wall_time_s) + _bytes(3, b"brain.Event:2")  # Event.wall_time, .file_version
    session_start = _varint_field(1, 1)  # SessionLog.status = START
    restart = _double(1, wall_time_s) + _varint_field(2, 0) + _bytes(7, session_start)  # Event.session_log
    return _record(version) + _record(restart)


def scalars_record(step: int, scalars: Mapping[str, float], wall_time_s: float) -> bytes:
    """One record: the values of `scalars` at `step` (>= 0)."""
    values = b""
    for tag, value in scalars.items():
        # Summary.value = { tag = 1, simple_value = 2 }
        values += _bytes(1, _bytes(1, tag.encode()) + _float(2, value))
    return _record(
        _double(1, wall_time_s) + _varint_field(2, step) + _bytes(5, values)
    )  # Event.step, .summary


def _record(data: bytes) -> bytes:
    """TFRecord framing: length, its checksum, data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc32c(length) + data + _masked_crc32c(data)


def _masked_crc32c(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _float(field: int, number: float) -> bytes:
    try:
        packed = struct.pack("<f", number)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", float("inf") if number > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


METRICS_SCHEMA = 1
_OWN_FIELDS = OTHER_FIELDS - {"learning_rate", "num_slots", "num_workers"}  # the others are charted


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
            extra: further numbers, like samples per second or the number of slots.
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
            make_inside(path.parent)
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
