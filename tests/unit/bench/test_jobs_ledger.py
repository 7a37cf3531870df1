"""The figures of bench_harmony_real.py from the ledger of a run of many jobs."""

from __future__ import annotations

import pytest
from support.jobs_ledger import read_run

from hpcbal.events.line import Line
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.job_lines import (
    JobDoneLine,
    JobEpochLine,
    JobPlacedLine,
    JobsGroupedLine,
    MachinesUsedLine,
    SharingFacts,
)
from hpcbal.telemetry.ledger.run import NodeFacts, RunStartedLine

BOTH = SharingFacts(("a", "b"), (1, 2), 1.0)
STARTED = RunStartedLine("jobs", "run", False, (NodeFacts("host", 0),), 3, "CPU", 0, "harmony", False, {})
USED = MachinesUsedLine((1, 2), (0.5, 0.7), (0.2, 0.4), (0, 0), (0, 0))


def entries(*lines: tuple[float, Line]) -> list[Entry]:
    """Lines with their seconds since the start."""
    return [
        Entry(seq, f"2026-01-01T00:{int(at_s) // 60:02d}:{at_s % 60:06.3f}Z", line)
        for seq, (at_s, line) in enumerate(lines)
    ]


def epochs(job: str, *ends_s: float) -> list[tuple[float, Line]]:
    return [(end_s, JobEpochLine(job, number, 1.0, {})) for number, end_s in enumerate(ends_s, 1)]


def ledger(*ends: tuple[float, Line]) -> list[Entry]:
    """Two jobs that share machines; a is done at 40 s, b at 70 s."""
    lines: list[tuple[float, Line]] = [
        (0.0, STARTED),
        (1.0, JobsGroupedLine((BOTH,))),
        (1.0, JobPlacedLine("a", (1, 2), 0)),
        (1.0, JobPlacedLine("b", (1, 2), 0)),
        *ends,
        (40.0, JobDoneLine("a", 4, "all epochs")),
        (70.0, JobDoneLine("b", 4, "all epochs")),
        (71.0, USED),
    ]
    return entries(*sorted(lines, key=lambda line: line[0]))


def test_makespan_and_mean_completion_are_those_of_the_ends() -> None:
    run = read_run(ledger(), 4)
    assert (run.makespan_s, run.mean_completion_s) == (pytest.approx(70), pytest.approx(55))
    assert (run.cpu_use, run.network_use) == (pytest.approx(0.6), pytest.approx(0.3))


def test_a_group_is_measured_by_the_median_epoch_of_its_slowest_job() -> None:
    # b's epochs take 5, 9 and 5 s from the first one for which both are there.
    ends = [*epochs("a", 5, 9, 13, 17, 21), *epochs("b", 10, 15, 24, 29)]
    (group,) = read_run(ledger(*ends), 4).groups
    assert group.measured_s == pytest.approx(5 / 4)
    assert group.error == pytest.approx(abs(1.0 - 1.25) / 1.25)


def test_epochs_after_a_job_of_the_group_is_done_do_not_count() -> None:
    ends = [*epochs("a", 5, 10, 15), *epochs("b", 5, 10, 15, 50, 60)]
    (group,) = read_run(ledger(*ends), 4).groups
    assert group.measured_s == pytest.approx(5 / 4)


def test_a_group_with_few_epochs_is_not_measured() -> None:
    assert not read_run(ledger(*epochs("a", 5, 10, 15), *epochs("b", 10, 15)), 4).groups


def test_a_run_without_an_end_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no end"):
        read_run(entries((0.0, STARTED)), 4)
