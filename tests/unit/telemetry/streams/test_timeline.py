"""timeline.json.gz: whole after every write, bounded, continued by a later start."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbal.telemetry.streams.slices import CHECKPOINT, COMPUTE, REDUCE, Slice, mark
from hpcbal.telemetry.streams.timeline import FIRST_PID, TimelineFile, read_timeline

MANY = 1 << 20


def load(path: Path) -> list[dict[str, Any]]:
    """Read all of the file with the standard library alone, as a viewer does."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in events if event["ph"] == "X"]


def some(count: int, kind: str = COMPUTE, start: float = 1000.0) -> list[Slice]:
    return [of_s(kind, start + i, 0.5, step=i) for i in range(count)]


def of_s(kind: str, start_s: float, seconds: float, name: str = "", **facts: float) -> Slice:
    return Slice(kind, round(start_s * 1e6), round((start_s + seconds) * 1e6), name, facts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timeline.json.gz"


def test_it_is_whole_after_every_write(path: Path) -> None:
    timeline = TimelineFile(path, MANY)
    assert load(path) == []
    for count in (1, 2, 3):
        timeline.add(3, 1, some(1))
        timeline.flush()
        assert len(load(path)) == count
    timeline.close()
    assert len(load(path)) == 3


def test_a_slice_becomes_an_event_of_its_rank(path: Path) -> None:
    timeline = TimelineFile(path, MANY)
    timeline.name_track(3, 1, "node 1 (n7)", "slot 5")
    timeline.add(3, 1, [of_s("pass", 1.5, 0.25, "a pass 0", steps=4.0)])
    timeline.close()
    node, rank, event = read_timeline(path)
    assert (node["name"], node["args"]) == ("process_name", {"name": "node 1 (n7)"})
    assert (rank["name"], rank["args"], rank["tid"]) == ("thread_name", {"name": "rank 3: slot 5"}, 4)
    assert event == {
        "ph": "X",
        "name": "a pass 0",
        "cat": "pass",
        "pid": FIRST_PID + 1,
        "tid": 4,
        "ts": 1_500_000,
        "dur": 250_000,
        "args": {"steps": 4.0},
    }


def test_a_mark_is_a_moment_on_a_track(path: Path) -> None:
    timeline = TimelineFile(path, MANY)
    timeline.add(3, 1, [mark("a waited 0.2 s in pass 0: compute", {"late_s": 0.2})])
    timeline.close()
    (event,) = read_timeline(path)
    assert (event["ph"], event["s"], event["tid"]) == ("i", "t", 4)
    assert (event["name"], event["args"]) == ("a waited 0.2 s in pass 0: compute", {"late_s": 0.2})
    assert "dur" not in event


def test_a_later_start_continues_it(path: Path) -> None:
    for start in (1.0, 2.0, 3.0):
        timeline = TimelineFile(path, MANY)
        timeline.add(0, 0, some(2, start=start))
        timeline.close()
    assert [event["ts"] for event in load(path)] == [1e6, 2e6, 2e6, 3e6, 3e6, 4e6]


def test_a_killed_writer_leaves_a_whole_file(path: Path) -> None:
    program = (
        "import itertools, sys\n"
        "from hpcbal.telemetry.streams.slices import Slice\n"
        "from hpcbal.telemetry.streams.timeline import TimelineFile\n"
        "timeline = TimelineFile(sys.argv[1], 1 << 24)\n"
        "for i in itertools.count():\n"
        "    timeline.add(0, 0, [Slice('compute', i, i + 1)] * 20)\n"
        "    timeline.flush()\n"
        "    print(i, flush=True)\n"
        "    if i < 20: sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        for i in range(20):
            assert int(process.stdout.readline()) == i
            assert len(load(path)) == 20 * (i + 1)  # between two writes: a reader may see one by halves
            process.stdin.write("\n")
            process.stdin.flush()
        while int(process.stdout.readline()) < 40:
            continue
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(load(path)) >= 41 * 20


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data[: len(data) // 2]])
def test_a_damaged_file_is_continued_from_its_last_whole_event(path: Path, damage: Any) -> None:
    timeline = TimelineFile(path, MANY)
    for start in range(20):
        timeline.add(0, 0, some(50, start=start * 100.0))
        timeline.flush()
    timeline.close()
    path.write_bytes(damage(path.read_bytes()))
    kept = [event for event in read_timeline(path) if event["ph"] == "X"]
    assert 100 < len(kept) <= 1000
    timeline = TimelineFile(path, MANY)
    timeline.add(0, 0, some(1))
    timeline.close()
    assert load(path)[:-1] == kept


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"not a gzip file", gzip.compress(b"{}", mtime=0)])
def test_what_is_no_timeline_is_replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    timeline = TimelineFile(path, MANY)
    timeline.add(0, 0, some(1))
    timeline.close()
    assert len(load(path)) == 1


def test_it_stays_below_its_limit_and_drops_steps_first(path: Path) -> None:
    timeline = TimelineFile(path, 20_000)
    for i in range(400):
        start = 1e9 + i * 3.123456
        timeline.add(0, 0, [of_s(COMPUTE, start + j / 7, j / 13) for j in range(10)])
        timeline.add(0, 0, [of_s(CHECKPOINT, start, i / 17)])
        timeline.flush()
    timeline.close()
    assert 10_000 < path.stat().st_size <= 20_000
    kinds = [event["cat"] for event in load(path)]
    assert kinds.count(COMPUTE) > 100
    assert kinds[-20:] == [CHECKPOINT] * 20
    timeline.add(0, 0, some(1, REDUCE))  # closed: dropped


def test_no_bytes_are_no_file(path: Path) -> None:
    timeline = TimelineFile(path, 0)
    timeline.name_track(0, 0, "n", "r")
    timeline.add(0, 0, some(1))
    timeline.flush()
    timeline.close()
    assert not path.exists()


def test_a_full_disk_ends_the_timeline_not_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timeline = TimelineFile(path, MANY)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    timeline.add(0, 0, some(1))
    timeline.flush()
    assert not timeline.is_open
    assert "the timeline ends here, because it cannot be written" in caplog.text
    timeline.add(0, 0, some(1))
    timeline.close()
    assert load(path) == []


def test_a_directory_that_takes_no_file_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not TimelineFile(tmp_path / "none" / "timeline.json.gz", MANY).is_open
    assert "the timeline ends here" in caplog.text
