"""A run never writes through a symbolic link, and never waits for the other end of a pipe."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.errors import OutputError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.dnn_lines import DnnDoneLine
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.streams.metrics import MetricsWriter
from hpcbal.telemetry.streams.rank_log import configure_rank_logging
from hpcbal.telemetry.streams.timeline import TimelineFile

STATE = TrainingState("a", 1, Position(1), (), {"weights/w": np.ones(3)}, "data")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Somebody else's file."""
    path = tmp_path / "foreign"
    path.write_text("theirs")
    return path


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a replaced file": ("status.json", lambda root: write_atomic(root / "status.json", "new")),
    "its successor": ("status.json.tmp", lambda root: write_atomic(root / "status.json", "new")),
    "a checkpoint": ("dnns/a/checkpoint.h5", lambda root: write_checkpoint(root / "dnns/a", STATE)),
    "its successor ": ("dnns/a/checkpoint.h5.tmp", lambda root: write_checkpoint(root / "dnns/a", STATE)),
    "a timeline": ("timeline.json.gz", lambda root: TimelineFile(root / "timeline.json.gz", 9000).close()),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_replaced_by_a_file(tmp_path: Path, foreign: Path, name: str, exists: bool) -> None:
    where, write = WRITERS[name]
    root = tmp_path / "run"
    link = root / where
    link.parent.mkdir(parents=True)
    link.symlink_to(foreign if exists else tmp_path / "nowhere")
    write(root)
    assert not link.is_symlink()
    assert foreign.read_text() == "theirs"
    assert not (tmp_path / "nowhere").exists()


def append_to_ledger(root: Path) -> None:
    with Ledger(root / "ledger.jsonl") as ledger:
        ledger.append(DnnDoneLine("a", ""))


def append_to_metrics(root: Path) -> None:
    writer = MetricsWriter(RunDirectory(root))
    writer.write("a", EpochRecord(1, 0, {}, 1.0))
    writer.flush()
    (root / "dnns/a/metrics.jsonl").unlink()
    (root / "dnns/a/metrics.jsonl").symlink_to(root.parent / "foreign")
    writer.write("a", EpochRecord(2, 1, {}, 1.0))
    writer.flush()


APPENDERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the ledger": ("ledger.jsonl", append_to_ledger),
    "the log of a rank": ("logs/rank-002.log", lambda root: configure_rank_logging(root, 2, "n").close()),
    "the folder of the logs": ("logs", lambda root: configure_rank_logging(root, 2, "n").close()),
    "metrics": ("elsewhere", append_to_metrics),
}


@pytest.mark.parametrize("name", APPENDERS)
def test_what_is_appended_to_must_not_be_a_link(tmp_path: Path, foreign: Path, name: str) -> None:
    where, append = APPENDERS[name]
    root, folder = tmp_path / "run", tmp_path / "folder"
    folder.mkdir()
    (root / where).parent.mkdir(parents=True)
    (root / where).symlink_to(folder if where == "logs" else foreign)
    with pytest.raises(OutputError, match=r"does not write through links: remove it") as refused:
        append(root)
    assert "\n" not in str(refused.value)
    assert foreign.read_text() == "theirs"
    assert list(folder.iterdir()) == []


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "rank-000.log")
    with pytest.raises(OutputError, match=r"rank-000\.log: cannot open the log: .*\(.*\)"):
        configure_rank_logging(tmp_path, 0, "n", logging.INFO)


def test_a_directory_under_a_temporary_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "status.json.tmp" / "x").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"status\.json\.tmp: cannot write: Is a directory \(.*remove it"):
        write_atomic(tmp_path / "status.json", "new")
