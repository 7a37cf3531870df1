"""The report of one parameter-server job: its throughput beside the forecast, and its executors over time."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_lines import a

from hpcbal.report.model import MachineBusy, RateComparison, ReportData
from hpcbal.report.page.page import render_page
from hpcbal.telemetry.ledger.job_lines import WorkerFacts

ROLES = {"roles": ("worker", "worker", "server"), "data_blocks": (1, 1, 0), "parameter_blocks": (0, 0, 1)}
FORECAST = {"num_workers": 2, "num_servers": 1, "samples_per_s": 100.0, "low": 95.0, "high": 105.0}


def begin(history: Any, second: float, *, with_forecast: bool = True, **start: Any) -> None:
    history.start(second, (3,), **start)
    history.add(second, "roles-assigned", num_samples=50, parameter_bytes=8, **ROLES)
    if with_forecast:
        history.add(second, "throughput-forecast", job="job", **FORECAST)


def epoch(history: Any, second: float, number: int, seconds: float) -> None:
    workers = tuple(a(WorkerFacts, executor=rank, samples=25) for rank in (1, 2))
    history.add(second, "job-epoch", job="job", epoch=number, seconds=seconds, metrics={}, workers=workers)


def rates(data: ReportData) -> tuple[RateComparison, ...]:
    return data.rates


def test_epochs_after_the_first_of_a_start_are_compared(history: Any) -> None:
    begin(history, 0)
    epoch(history, 5, 1, 5.0)
    assert rates(history.read()) == ()
    epoch(history, 6, 2, 0.5)
    epoch(history, 7, 3, 0.75)
    assert rates(history.read()) == (RateComparison("job", 3, 100.0, 80.0),)


def test_after_a_reconfiguration_epochs_are_not_compared(history: Any) -> None:
    begin(history, 0)
    epoch(history, 1, 1, 1.0)
    epoch(history, 2, 2, 0.5)
    history.add(2, "reconfigured", job="job", why="more", roles=("worker", "server", "server"))
    epoch(history, 3, 3, 5.0)
    assert rates(history.read()) == (RateComparison("job", 3, 100.0, 100.0),)


@pytest.mark.parametrize("with_forecast", [False, True])
def test_the_last_start_counts_if_it_was_forecast(history: Any, with_forecast: bool) -> None:
    begin(history, 0)
    epoch(history, 1, 1, 1.0)
    epoch(history, 2, 2, 0.5)
    begin(history, 100, with_forecast=with_forecast, resumed=True)
    epoch(history, 101, 3, 1.0)
    epoch(history, 102, 4, 1.0)
    assert rates(history.read()) == (RateComparison("job", 3, 100.0, 50.0 if with_forecast else 100.0),)


def test_without_a_forecast_nothing_is_compared(history: Any) -> None:
    begin(history, 0, with_forecast=False)
    for number in (1, 2, 3):
        epoch(history, number, number, 1.0)
    assert rates(history.read()) == ()


def test_executors_are_shown_with_their_roles_and_what_workers_did(history: Any) -> None:
    history.start(0, (3,), kind="paramserver")
    history.add(1, "roles-assigned", num_samples=50, parameter_bytes=8, **ROLES)
    worker = a(WorkerFacts, executor=1, samples=25, compute_s=3.0, pull_s=0.5, num_bytes=8_000_000)
    history.add(6, "job-epoch", job="birds", epoch=1, seconds=4.0, metrics={}, workers=(worker,))
    history.add(7, "reconfigured", job="birds", why="more", roles=("worker", "standby", "server"))
    data = history.add(9, "run-finished", outcome="suspended", exit_code=75).read()
    assert [(span.slot, span.role, span.start_s, span.end_s) for span in data.spans] == [
        (0, "worker", 1.0, 7.0),
        (1, "worker", 1.0, 7.0),
        (2, "server", 1.0, 7.0),
        (0, "worker", 7.0, 9.0),
        (2, "server", 7.0, 9.0),
    ]
    assert data.busy == (MachineBusy(0, 2.0, 6.0, 0.75, 2e6),)
    worked, idle = data.use[0].seconds, data.use[1].seconds["idle"]
    assert (worked["training"], worked["data"], idle) == (3.0, 0.5, 3.0)
    assert data.use_share("training") == 3.0 / 27.0  # not the time in which they had a role
    page = render_page(data)
    assert "of all executor time computing" in page
    assert "executor 1" in page
    assert "2.00 MB/s" in page
