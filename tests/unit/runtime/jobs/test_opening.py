"""Facts about earlier starts, from the ledger."""

from __future__ import annotations

from typing import Any

from ledger_lines import a, entry

from hpcbal.runtime.jobs.opening import how_jobs_ended, machine_seconds
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT


def test_machine_seconds_of_all_starts_add_up() -> None:
    entries: list[Entry] = []

    def add(at_s: float, event: str, **fields: Any) -> None:
        entries.append(entry(a(LINE_BY_EVENT[event], **fields), len(entries), at_s))

    add(0, "run-started", kind="jobs")
    add(1, "job-placed", job="a", machines=(1, 2), epochs=0)
    add(2, "job-placed", job="b", machines=(3,), epochs=0)
    add(4, "job-rested", job="a")
    add(5, "job-placed", job="a", machines=(3,), epochs=0)
    add(6, "job-epoch", job="a", epoch=1)  # killed after this line
    add(100, "run-started", kind="jobs", resumed=True)
    add(101, "job-placed", job="b", machines=(1,), epochs=0)
    add(103, "job-done", job="b")
    assert machine_seconds(entries) == {"a": 2 * 3 + 1, "b": 4 + 2}
    assert machine_seconds(()) == {}


def test_a_job_that_was_started_again_is_not_over() -> None:
    def ends(*lines: tuple[str, dict[str, Any]]) -> list[str]:
        entries = [
            entry(a(LINE_BY_EVENT[event], **fields), number, float(number))
            for number, (event, fields) in enumerate(lines)
        ]
        return list(how_jobs_ended(entries))

    failed, placed = ("job-failed", {"job": "a"}), ("job-placed", {"job": "a", "machines": (1,)})
    other, again = ("job-done", {"job": "b"}), ("run-started", {"kind": "jobs"})
    assert ends(placed, failed, other, again) == ["a", "b"]
    assert ends(placed, failed, other, again, placed) == ["b"]
    assert ends(failed, ("run-started", {}), ("roles-assigned", {})) == []
