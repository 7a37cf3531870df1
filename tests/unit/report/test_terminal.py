"""The view of a run on a terminal, drawn at fixed sizes."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from ledger_lines import a
from rich.console import Console

from hpcbal.planning.calibration import TimeBand
from hpcbal.report.model import ReportData
from hpcbal.report.reading.run_files import read_run
from hpcbal.report.terminal import RunView, remaining_s
from hpcbal.telemetry.files.json_lines import utc_text
from hpcbal.telemetry.ledger.job_lines import SharingFacts, WorkerFacts
from hpcbal.telemetry.views.ensemble_table import EnsembleStatus, new_status
from hpcbal.telemetry.views.paramserver_status import new_paramserver_status

NOW_S = 1_790_000_010.0


def drawn(
    data: ReportData,
    status: Any = None,
    band: TimeBand | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    **given: Any,
) -> list[str]:
    """The lines that a terminal without colours shows."""
    file = io.StringIO()
    console = Console(
        file=file, width=size[0], height=size[1], force_terminal=True, color_system=None, record=True, **given
    )
    console.print(RunView(data, status, band, NOW_S), end="", height=size[1])
    lines = console.export_text().rstrip("\n").split("\n")
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    return [line.rstrip() for line in lines]


def status_of(states: dict[str, str], **given: Any) -> EnsembleStatus:
    status = new_status("birds", 2, now=NOW_S - 10.0)
    status["phase"], status["busy_slots"] = "training", 2
    status["updated_at"] = utc_text(NOW_S - 2.0)
    for name, state in states.items():
        status["dnns"].append(
            {
                "name": name,
                "state": state,
                "epochs": 1,
                "max_epochs": 4,
                "metrics": {},
                "slots": [],
                "wall_time_s": 2.0,
                "slot_seconds": 2.0,
                "cause": "",
                "detail": "",
            }
        )
    status |= given  # type: ignore[typeddict-item]
    return status


@pytest.fixture
def running(history: Any) -> ReportData:
    """Two DNNs train on two slots, two wait."""
    history.start(0).round(0, 0, {"a": (0,), "b": (1,)})
    for second in (2, 4, 6):
        history.epoch(second, "a", seconds=2.0, accuracy=0.1 * second)
    history.epoch(5, "b", seconds=5.0, accuracy=0.4)
    states = {"a": "running", "b": "running", "c": "waiting", "d": "waiting"}
    (history.directory / "status.json").write_text(json.dumps(status_of(states)), encoding="utf-8")
    return read_run(history.write(), NOW_S)


def test_slots_curves_and_states_are_shown(running: ReportData) -> None:
    status = status_of({"a": "running", "b": "running", "c": "waiting", "d": "waiting"})
    lines = drawn(running, status)
    text = "\n".join(lines)
    assert lines[0] == "birds  running  0 of 4 DNNs done, 2 of 2 slots in use"
    slot = next(line for line in lines if line.startswith("slot 0"))
    assert slot.startswith("slot 0 a aaaa")
    assert len(slot) == 80
    curve = next(line for line in lines if line.startswith("a a"))
    assert curve.split() == ["a", "a", "running", "3/4", "▁▄█", "0.6", "0.6"]
    assert "next: c, d" in text
    assert lines[-1].startswith("q quits; as of")


def test_the_end_is_predicted_with_its_band(running: ReportData) -> None:
    band = TimeBand(3600.0, 7200.0, 10800.0, 0.0, 12, "")
    status = status_of({"c": "waiting"}, prediction={"wall_time_s": 9.0, "remaining_s": 60.0})
    status["prediction"]["next_s"] = {"c": 75.0, "d": 80.0}
    line = drawn(running, status, band)[1]
    low, median, high = (time.strftime("%H:%M", time.localtime(NOW_S + s)) for s in (3600, 7200, 10800))
    assert median in line
    assert low in line
    assert high in line
    assert "nine of ten runs" in line
    assert "next: c in 1 min 15 s, d in 1 min 20 s" in drawn(running, status, band)
    assert remaining_s(running, status, NOW_S) == 58.0  # two seconds after the status
    assert "not predicted yet" in drawn(running, status)[1]


@pytest.mark.parametrize("size", [(80, 24), (80, 12), (40, 10), (20, 5), (9, 2), (200, 60)])
def test_it_fits_any_terminal(running: ReportData, size: tuple[int, int]) -> None:
    lines = drawn(running, status_of({}), size=size)
    assert lines[0].startswith("birds")
    assert size[1] < 12 or lines[-1].startswith("q quits")


def test_many_jobs_on_many_slots_fit(history: Any) -> None:
    names = {f"dnn-{number}": (number,) for number in range(100)}
    data = history.start(0, (100,)).round(1, 0, names).add(9, "prediction").read()
    lines = drawn(data)
    assert len(lines) == 24
    assert any(line.startswith("slot 0+") for line in lines)
    assert any("more:" in line for line in lines)


def test_a_terminal_of_few_characters_gets_only_those(running: ReportData) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=80, height=24, force_terminal=True, color_system=None)
    console.print(RunView(running, None, None, NOW_S), end="", height=24)
    file.flush()


def test_names_cannot_act_on_the_terminal(history: Any) -> None:
    data = history.start(0).round(1, 0, {"a\x1b[2J": (0,)}).epoch(3, "a\x1b[2J", seconds=1.0).read()
    assert not any("\x1b[2J" in line for line in drawn(data))


def test_jobs_on_the_same_machine_take_turns_in_its_row(history: Any) -> None:
    history.start(0, (2,), kind="jobs")
    history.add(0, "jobs-grouped", groups=(SharingFacts(("x", "y"), (1,)),), waiting=("z",))
    for job in "xy":
        history.add(0, "job-placed", job=job, machines=(1,), epochs=0)
    lines = drawn(history.add(9, "job-epoch", job="x", epoch=1, seconds=9.0, metrics={"loss": 1.0}).read())
    assert next(line for line in lines if line.startswith("machine 1")).startswith("machine 1 abab")
    assert next(line for line in lines if line.startswith("machine 2")).endswith("....")


def test_epochs_without_a_value_are_no_missing_epochs(history: Any) -> None:
    history.start(0, (2,), kind="jobs")
    history.add(0, "job-placed", job="x", machines=(1,), epochs=0)
    assert any("no epoch yet" in line for line in drawn(history.read()))
    history.add(9, "job-epoch", job="x", epoch=1, seconds=9.0, metrics={})
    assert any("no value yet" in line for line in drawn(history.read()))


def test_a_job_on_parameter_servers_goes_on_as_it_did(history: Any) -> None:
    history.start(0, (2,), kind="paramserver")
    history.add(0, "roles-assigned", roles=("worker", "server"), data_blocks=(1, 0), parameter_blocks=(0, 1))
    worker = a(WorkerFacts, executor=1, compute_s=1.0)
    metrics = {"loss": 1.0, "rmse": 2.0}
    history.add(4, "job-epoch", job="birds", epoch=1, seconds=4.0, metrics=metrics, workers=(worker,))
    status: Any = new_paramserver_status("birds", 2, now=NOW_S - 10.0)
    status["phase"], status["updated_at"] = "training", utc_text(NOW_S - 2.0)
    status["jobs"] = [
        {"name": "birds", "state": "running", "epochs": 1, "max_epochs": 4, "wall_time_s": 4.0}
        | {"metrics": {}, "main_metric": "loss", "best": 1.0, "slot_seconds": 8.0, "cause": "", "detail": ""}
    ]
    (history.directory / "status.json").write_text(json.dumps(status), encoding="utf-8")
    data = read_run(history.write(), NOW_S)
    assert remaining_s(data, status, NOW_S) == 3 * 4.0 - 2.0
    lines = drawn(data, status)
    assert next(line for line in lines if line.startswith("executor 1")).startswith("executor 1 w worker")
    (job,) = data.jobs  # as results.csv and the console have it
    assert (job.wall_time_s, job.slot_seconds, job.best) == (4.0, 8.0, 1.0)
    assert data.measured_by.words == "least training loss"
