"""Metrics per epoch: each once, after kills and resumes too, and readable by TensorBoard."""

import math
import os
import subprocess
import sys

import pytest
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from hpcbal.errors import OutputError
from hpcbal.events.history import EpochRecord
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.streams import metrics as module
from hpcbal.telemetry.streams.metrics import MetricsWriter, read_metrics


def record(epoch: int, **metrics: float) -> EpochRecord:
    return EpochRecord(epoch, epoch - 1, {"val_accuracy": epoch / 8, **metrics}, 1.5)


def epochs_in(directory, dnn_id="a"):
    return [line["epoch"] for line in read_metrics(directory / "dnns" / dnn_id / "metrics.jsonl")]


def tensorboard_events(directory, dnn_id="a"):
    """All events of the one event file, read (and their checksums checked) by TensorBoard's own code."""
    (path,) = (directory / "dnns" / dnn_id).glob("events.out.tfevents.*")
    reader = PyRecordReader_New(str(path))
    events = []
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return events
        events.append(event_pb2.Event.FromString(reader.record()))


def steps_in(directory):
    return [event.step for event in tensorboard_events(directory) if event.HasField("summary")]


def test_an_epoch_is_in_both_files_after_a_flush(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.write("a", record(1, loss=0.5), {"num_slots": 2})
    (line,) = read_metrics(tmp_path / "dnns/a/metrics.jsonl")
    assert (line["epoch"], line["pass_index"], line["seconds"]) == (1, 0, 1.5)
    assert (line["val_accuracy"], line["loss"], line["num_slots"]) == (0.125, 0.5, 2)
    version, restart, epoch = tensorboard_events(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert (restart.session_log.status, restart.step) == (event_pb2.SessionLog.START, 0)
    assert {value.tag: value.simple_value for value in epoch.summary.value} == {
        "seconds": 1.5,
        "val_accuracy": 0.125,
        "loss": 0.5,
        "num_slots": 2.0,
    }
    assert (epoch.step, epoch.wall_time > 1.6e9) == (1, True)


def test_unusual_numbers_reach_tensorboard(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.write("a", record(300, loss=math.nan, big=1e300, small=-1e300, whole=7))
    values = {value.tag: value.simple_value for value in tensorboard_events(tmp_path)[-1].summary.value}
    assert math.isnan(values["loss"])
    assert (values["big"], values["small"], values["whole"]) == (math.inf, -math.inf, 7.0)
    assert read_metrics(tmp_path / "dnns/a/metrics.jsonl")[0]["loss"] is None


def test_lines_wait_until_the_time_has_come(tmp_path):
    now = [0.0]
    writer = MetricsWriter(RunDirectory(tmp_path), flush_interval_s=10.0, clock=lambda: now[0])
    writer.write("a", record(1))
    writer.flush_if_due()
    assert epochs_in(tmp_path) == []
    now[0] = 10.0
    writer.flush_if_due()
    assert epochs_in(tmp_path) == [1]


def test_epochs_after_the_checkpoint_are_dropped_by_a_rewind(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        for epoch in (1, 2, 3, 4):
            writer.write("a", record(epoch))
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.rewind("a", 2)
        assert epochs_in(tmp_path) == steps_in(tmp_path) == [1, 2]
        writer.write("a", record(3))
    assert epochs_in(tmp_path) == steps_in(tmp_path) == [1, 2, 3]


def test_epochs_that_were_lost_before_a_flush_come_from_the_checkpoint(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.write("a", record(1, loss=7.0))
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.rewind("a", 3, [record(epoch) for epoch in (1, 2, 3, 4)])
    assert epochs_in(tmp_path) == steps_in(tmp_path) == [1, 2, 3]
    assert read_metrics(tmp_path / "dnns/a/metrics.jsonl")[0]["loss"] == 7.0  # from the flushed line


def test_a_rewind_drops_what_waits(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.write("a", record(1))
        writer.rewind("a", 0)
    assert epochs_in(tmp_path) == []


def test_a_rewind_of_a_dnn_that_has_not_begun_makes_nothing(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.rewind("a", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_end_of_either_file_is_mended_by_the_next_start(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.write("a", record(1))
        writer.write("a", record(2))
    for path in (tmp_path / "dnns/a").iterdir():
        path.write_bytes(path.read_bytes()[:-5])
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.rewind("a", 2, [record(1), record(2)])
        writer.write("a", record(3))
    assert epochs_in(tmp_path) == steps_in(tmp_path) == [1, 2, 3]


WRONG_LINES = (
    '{"epoch": 2}',  # no time
    '{"epoch": -1, "time": "2025-01-31T12:00:00.000Z"}',  # a negative number has no end in TensorBoard's file
    '{"epoch": 2, "time": 5}',
    '{"epoch": true, "time": "2025-01-31T12:00:00.000Z"}',
    '{"epoch": 2, "time": "2025-01-31T12:00:00.000Z", "seconds": []}',
)


def test_damaged_lines_are_skipped_and_filled_from_the_checkpoint(tmp_path, caplog):
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.write("a", record(1))
    path = tmp_path / "dnns/a/metrics.jsonl"
    huge = '{"epoch": 3, "time": "2025-01-31T12:00:00.000Z", "loss": %s}' % ("9" * 400)
    path.write_text(path.read_text() + "\n".join([*WRONG_LINES, huge]) + "\n")
    with MetricsWriter(RunDirectory(tmp_path)) as writer:
        writer.rewind("a", 3, [record(1), record(2), record(3)])
    assert epochs_in(tmp_path) == steps_in(tmp_path) == [1, 2, 3]
    assert caplog.text.count("5 damaged lines are skipped") == 1


def test_many_starts_leave_one_event_file_whose_name_comes_after_the_last(tmp_path):
    names = []
    for epoch in range(1, 15):
        with MetricsWriter(RunDirectory(tmp_path)) as writer:
            writer.rewind("a", epoch - 1)
            writer.write("a", record(epoch))
        names += [path.name for path in (tmp_path / "dnns/a").glob("events*")]
    assert names == sorted(set(names))
    assert len(names) == 14
    assert len(list((tmp_path / "dnns/a").iterdir())) == 2
    assert steps_in(tmp_path) == list(range(1, 15))


def test_a_failed_flush_is_reported_and_the_next_one_mends_it(tmp_path, monkeypatch):
    writer = MetricsWriter(RunDirectory(tmp_path))
    writer.write("a", record(1))
    writer.flush()
    metrics = tmp_path / "dnns/a/metrics.jsonl"
    writer.write("a", record(2))
    with monkeypatch.context() as patch:
        patch.setattr(module, "own_file", lambda path, flags: os.open("/dev/full", flags))
        with pytest.raises(OutputError, match="No space left"):
            writer.flush()
    with open(metrics, "a") as file:
        file.write('{"epoch": 2, "val_')
    writer.flush()
    assert epochs_in(tmp_path) == steps_in(tmp_path) == [1, 2]


def test_no_metrics_read_as_none(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_nothing_heavy_is_imported_for_it():
    heavy = {"tensorflow", "tensorboard", "mpi4py", "h5py", "rich"}
    code = """
import importlib, pkgutil, sys
import hpcbal.telemetry
for module in pkgutil.walk_packages(hpcbal.telemetry.__path__, "hpcbal.telemetry."):
    importlib.import_module(module.name)
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "hpcbal.telemetry.streams.metrics" in done.stdout.split()
    assert not heavy & set(done.stdout.split())


def test_each_kind_of_run_has_a_folder_of_its_own_for_its_jobs(tmp_path):
    with MetricsWriter(RunDirectory(tmp_path, "jobs")) as writer:
        writer.write("nmf", EpochRecord(1, 0, {"objective": 0.5}, 1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
    assert read_metrics(tmp_path / "jobs" / "nmf" / "metrics.jsonl")[0]["objective"] == 0.5
