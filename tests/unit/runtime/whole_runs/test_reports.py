"""`hpcbal report` on runs that are under way, or were stopped and resumed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.cli import main
from hpcbal.report import read_run


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


def test_no_file_of_a_run_can_be_waited_for(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lab.use(dnns=lab.dnns())
    assert lab.run() == 0
    said = {}
    for path in [path for path in lab.out.iterdir() if path.is_file()]:
        kept = path.with_name("kept")
        path.rename(kept)
        os.mkfifo(path)
        for verb in (("status",), ("compare",), ("report", "--no-plots")):
            assert main([*verb, str(lab.out)]) in (0, 1, 2)
        said[path.name] = capsys.readouterr().err
        path.unlink()
        kept.rename(path)
    for name in ("status.json", "config.yaml", "ledger.jsonl"):
        assert f"{name}: " in said[name]
        assert "it is a pipe or a device, not a file" in said[name]
