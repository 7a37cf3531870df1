"""`hpcbal report` on runs that are under way, or were stopped and resumed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbal.checkpoint.weights import read_weights
from hpcbal.cli import main
from hpcbal.errors import CheckpointError
from hpcbal.report.reading.run_files import read_run


def test_a_stopped_and_resumed_run_is_one_story(lab: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(14, rank=1)
    assert read_run(lab.out).state == "stopped"
    assert lab.run() == 0
    data = read_run(lab.out)
    assert (data.state, len(data.start_s)) == ("done", 2)
    assert {dnn.name: len(dnn.curve) for dnn in data.jobs} == lab.epochs


def test_a_run_under_way_has_a_report(lab: Any, hooks: dict[str, Callable[[int], Any]], capsys: Any) -> None:
    seen: list[Any] = []
    first = threading.Lock()

    def look(step: int) -> None:
        if step and lab.events("epoch-done") and first.acquire(blocking=False):
            seen.append(read_run(lab.out))
            seen.append(main(["report", str(lab.out), "--no-plots"]))
            seen.append((lab.out / "report.html").read_text(encoding="utf-8"))

    hooks["act"] = look
    lab.use(dnns=lab.dnns(hook="act"))
    assert lab.run() == 0
    data, code, page = seen
    assert (data.state, data.num_slots) == ("running", 2)
    assert max(span.end_s for span in data.spans) == pytest.approx(data.duration_s)
    assert code == 0
    assert "running" in page


@pytest.mark.parametrize("instead", ["pipe", "device"])
def test_no_file_of_a_run_can_be_waited_for(
    lab: Any, capsys: pytest.CaptureFixture[str], instead: str
) -> None:
    """Each verb ends, and says in one sentence with one remedy what is wrong with the file."""
    lab.use(dnns=lab.dnns())
    assert lab.run() == 0

    def replace(path: Path) -> None:
        if instead == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")

    said = {}
    job = lab.out / "dnns" / "b"
    for path in [path for path in (*lab.out.iterdir(), *job.iterdir()) if path.is_file()]:
        kept = path.with_name("kept")
        path.rename(kept)
        replace(path)
        for verb in (("status",), ("compare",), ("report", "--no-plots")):
            assert main([*verb, str(lab.out)]) in (0, 2)
        said[path.name] = capsys.readouterr().err
        if path.name in ("checkpoint.h5", "best.h5"):
            with pytest.raises(CheckpointError) as caught:
                read_weights(job, "last" if path.name == "checkpoint.h5" else "best")
            said[path.name] = str(caught.value)
        path.unlink()
        kept.rename(path)
    for name in ("status.json", "config.yaml", "ledger.jsonl", "checkpoint.h5", "best.h5"):
        lines = said[name].splitlines()
        assert lines
        for line in lines:
            assert f"{name}: " in line
            assert line.count("it is a pipe or a device, not a file") == 1
            assert line.count("remove it") == 1
