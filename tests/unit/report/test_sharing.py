"""The report of many parameter-server jobs: who shared machines with whom, and how busy these were."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hpcbal.report.charts.all_charts import WIDE, draw_charts
from hpcbal.report.charts.busy import mean_over_time
from hpcbal.report.charts.gantt import blocks_of, lanes_of
from hpcbal.report.drawing.shapes import Rect
from hpcbal.report.model import MachineBusy, MachineReport, ReportData, SharingReport
from hpcbal.report.page.page import render_page
from hpcbal.telemetry.ledger.job_lines import SharingFacts


@pytest.fixture
def shared(history: Any) -> ReportData:
    """c comes while a and b share machines and d goes on alone; then the run is resumed with c and d."""
    history.start(0, (3,), kind="jobs")
    both, alone = SharingFacts(("a", "b"), (1, 2), 0.25), SharingFacts(("d",), (3,))
    history.add(1, "jobs-grouped", groups=(both, alone), waiting=())
    joined = SharingFacts(("a", "b", "c"), (1, 2), 0.5)
    history.add(4, "jobs-grouped", groups=(joined, alone), waiting=("e",))
    used = {"machines": (1, 2), "cpu": (0.5, 0.25), "network": (0.1, 0.2), "memory_bytes": (9, 8)}
    history.add(6, "machines-used", **used)
    history.add(6, "run-finished", outcome="suspended", exit_code=75)
    history.start(100, (3,), resumed=True, kind="jobs")
    history.add(101, "jobs-grouped", groups=(alone,), waiting=())
    used = {"machines": (2, 1), "cpu": (0.75, 0.5), "network": (0.0, 0.3), "memory_bytes": (2_000_000, 7)}
    return history.add(103, "machines-used", **used).read()


def test_a_group_lasts_until_another_one_or_the_end_of_its_start(shared: ReportData) -> None:
    assert shared.sharing == (
        SharingReport(("a", "b"), (1, 2), 1.0, 4.0, 0.25),
        SharingReport(("d",), (3,), 1.0, 6.0),
        SharingReport(("a", "b", "c"), (1, 2), 4.0, 6.0, 0.5),
        SharingReport(("d",), (3,), 7.0, 9.0),
    )


def test_machines_are_those_of_the_last_start_by_rank(shared: ReportData) -> None:
    assert shared.machines == (MachineReport(1, 0.5, 0.3, 7), MachineReport(2, 0.75, 0.0, 2_000_000))


def test_the_page_shows_groups_and_machines(shared: ReportData, history: Any) -> None:
    page = render_page(shared)
    assert 'id="groups"' in page
    assert "1.9 MiB" in page
    assert "75 %" in page


def test_runs_of_dnns_have_neither(history: Any) -> None:
    data = history.start(0).read()
    assert (data.sharing, data.machines) == ((), ())
    assert 'id="groups"' not in render_page(data)
    assert 'id="machines"' not in render_page(data)


@pytest.fixture
def placed(history: Any) -> ReportData:
    """a and b share two machines until a is done; b moves to a third one, and is there at a kill."""
    history.start(0, (3,), kind="jobs")
    history.add(1, "jobs-grouped", groups=(SharingFacts(("a", "b"), (1, 2), 0.25),), waiting=())
    for job in "ab":
        history.add(1, "job-placed", job=job, machines=(1, 2), epochs=0)
    history.add(5, "group-measured", jobs=("a", "b"), machines=(1, 2), predicted_s=0.25, measured_s=0.3)
    history.add(5, "job-done", job="a", epochs=3, detail="after 3 epochs")
    history.add(7, "jobs-grouped", groups=(SharingFacts(("b",), (3,), 0.2),), waiting=())
    rested = {"iterations": 9, "compute_s": 0.1, "network_s": 0.1, "period_s": 0.2}
    history.add(7, "job-rested", job="b", seconds=0.5, **rested)
    history.add(8, "job-placed", job="b", machines=(3,), epochs=2)
    history.add(9, "job-epoch", job="b", epoch=3, seconds=1.0, metrics={"loss": 1.0})
    history.start(100, (3,), resumed=True, kind="jobs")
    history.add(101, "job-placed", job="b", machines=(3,), epochs=3)
    return history.add(103, "run-finished", outcome="suspended", exit_code=75).read()


def test_measured_iterations_stand_beside_predicted_ones(placed: ReportData) -> None:
    assert placed.sharing == (
        SharingReport(("a", "b"), (1, 2), 1.0, 5.0, 0.25, 0.3),
        SharingReport(("b",), (1, 2), 5.0, 7.0),
        SharingReport(("b",), (3,), 7.0, 9.0, 0.2),
    )
    assert '<td class="number">0.2500 s</td><td class="number">0.3000 s</td>' in render_page(placed)


def test_time_on_machines_counts_over_all_starts(placed: ReportData) -> None:
    jobs = {job.name: (job.wall_time_s, job.slot_seconds) for job in placed.jobs}
    assert jobs == {"a": (4.0, 8.0), "b": (6.0 + 1.0 + 2.0, 12.0 + 1.0 + 2.0)}
    assert [use.seconds["training"] + use.seconds["peers"] for use in placed.use] == [6.0, 6.0, 3.0]
    assert all(sum(use.seconds.values()) == placed.duration_s for use in placed.use)


def test_the_page_of_jobs_has_no_words_of_ensembles(history: Any) -> None:
    history.start(0, (2,), kind="jobs")
    history.add(1, "job-placed", job="a", machines=(1, 2), epochs=0)
    for number in (1, 2):
        history.add(1 + number, "job-epoch", job="a", epoch=number, seconds=1.0, metrics={"loss": 1.0})
    history.add(4, "job-done", job="a", epochs=2, detail="after 2 epochs")
    data = history.add(5, "run-finished", outcome="done", decided_s=0.5).read()
    page = render_page(data)
    for words in ("best.h5", "checkpoint.h5", "starting", "slot", "profiling"):
        assert words not in re.sub(r"<style>.*</style>|(id|class)=\"[^\"]*\"", "", page, flags=re.DOTALL)
    assert "Kept are the parameters of the last checkpoint" in page
    assert "of all machine time computing" in page
    assert [each.name for each in data.overheads] == ["scheduling"]


def test_jobs_that_share_a_machine_lie_one_above_the_other(placed: ReportData) -> None:
    blocks = blocks_of(placed.spans)
    assert [(block.job, lane) for block, lane in zip(blocks, lanes_of(blocks), strict=True)] == [
        ("a", 0),
        ("b", 1),
        ("b", 0),
        ("b", 0),
    ]
    chart = draw_charts(placed, WIDE)["slots"]
    rows = [shape for shape in chart.shapes if isinstance(shape, Rect) and shape.job]
    assert len(rows) == 2 * 2 + 2  # two jobs on two machines, and b alone on the third one twice
    assert len({shape.y for shape in rows}) == 5


def test_of_many_machines_some_have_a_row(history: Any) -> None:
    history.start(0, (500,), kind="jobs")
    for job in "ab":
        history.add(1, "job-placed", job=job, machines=tuple(range(1, 501)), epochs=0)
    chart = draw_charts(history.add(9, "run-finished", outcome="done").read(), WIDE)["slots"]
    rows = [shape for shape in chart.shapes if isinstance(shape, Rect) and shape.job]
    assert 20 < len(rows) < 60
    assert chart.height < 700
    assert min(shape.height for shape in rows) >= 11.0  # room for the names


def test_iterations_of_groups_are_drawn_where_they_were_predicted_and_measured(placed: ReportData) -> None:
    chart = draw_charts(placed, WIDE)["iterations"]
    texts = [shape.text for shape in chart.shapes if hasattr(shape, "text")]
    assert "a b from 1.0 s" in texts
    assert "+20 %" in texts
    assert sum("from" in text for text in texts) == 1  # b was not measured


def test_cores_and_links_are_known_from_when_until_when(history: Any) -> None:
    history.start(0, (2,), kind="jobs")
    history.add(1, "job-placed", job="a", machines=(1, 2), epochs=0)
    shares = {"machines": (1, 2), "cpu": (0.5, 1.0), "network": (0.25, 0.0)}
    history.add(6, "machines-busy", seconds=(5.0, 7.0), **shares)  # clocks differ
    data = history.add(8, "machines-busy", seconds=(2.0, 2.0), **shares).read()
    assert data.busy == (
        MachineBusy(0, 1.0, 6.0, 0.5, 0.25),
        MachineBusy(1, 0.0, 6.0, 1.0, 0.0),
        MachineBusy(0, 6.0, 8.0, 0.5, 0.25),
        MachineBusy(1, 6.0, 8.0, 1.0, 0.0),
    )
    assert [use.seconds for use in data.use] == [
        {"training": 3.5, "peers": 3.5, "idle": 1.0},
        {"training": 7.0, "peers": 0.0, "idle": 1.0},
    ]
    texts = [each.text for each in draw_charts(data, WIDE)["busy-over-time"].shapes if hasattr(each, "text")]
    assert "cores: 77 % of the measured time" in texts


def test_a_ledger_of_an_older_version_has_the_use_of_whole_starts(shared: ReportData) -> None:
    assert shared.busy[:2] == (MachineBusy(0, 0.0, 6.0, 0.5, 0.1), MachineBusy(1, 0.0, 6.0, 0.25, 0.2))
    assert shared.busy[2:] == (MachineBusy(1, 6.0, 9.0, 0.75, 0.0), MachineBusy(0, 6.0, 9.0, 0.5, 0.3))


def test_means_over_time_weigh_by_time_and_leave_out_what_is_not_known() -> None:
    busy = [MachineBusy(0, 0.0, 1.0, 1.0, 0.0), MachineBusy(0, 1.0, 4.0, 0.0, 1.0)]
    assert mean_over_time(busy, 8.0, 4) == {0: (0.5, 0.5), 1: (0.0, 1.0)}
