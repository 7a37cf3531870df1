"""The soak that kills runs: same seed, same signals; it notices what it is there to notice."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from soak import cases
from soak.disturbing import LONGEST_S, MPIRUN, STARTER, Disturbance, End, unexplained
from soak.outcome import Outcome, difference, ledger_fault
from soak_kills import SIGNALS, disturbances
from workloads.exact import exact, points

import hpcbal
from hpcbal.config import load_config
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import RunFinishedLine

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
REASON = "hpcbal: the ranks have ended too; run the same command again to resume"


def test_signals_follow_from_the_seed_and_reach_everything() -> None:
    assert disturbances(0, 7) == disturbances(0, 7) != disturbances(1, 7)
    drawn = [one for run in range(200) for one in disturbances(0, run)]
    ranks = {f"rank {rank}" for rank in range(cases.NUM_RANKS)}
    assert {one.target for one in drawn} == {STARTER, MPIRUN} | ranks
    assert {one.number for one in drawn} == set(SIGNALS)
    assert {one.num_epochs for one in drawn} == {None, 0, 1, 2}
    assert {one.while_saving for one in drawn} == {False, True}


@pytest.mark.parametrize("case", cases.CASES)
def test_each_case_is_a_valid_configuration(case: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(cases.CASES[case]()), encoding="utf-8")
    warnings: list[str] = []
    load_config(path, check_imports=True, warn=warnings.append)
    assert warnings == []


def test_exact_sums_do_not_depend_on_the_split() -> None:
    dataset = points(32)
    model = exact((6,), 3)
    x, y = np.stack([dataset.read(i)[0] for i in range(32)]), np.arange(32) % 3
    parameters = model.initial_parameters(np.random.default_rng(3))
    loss, correct, gradient = model.loss_and_gradient(parameters, x, y)
    order = random.Random(0).sample(range(32), 32)
    parts = [
        model.loss_and_gradient(parameters, x[part], y[part]) for part in (order[:5], order[5:6], order[6:])
    ]
    assert sum(part[0] for part in parts) == loss == model.loss(parameters, x, y)[0]
    assert sum(part[1] for part in parts) == correct
    for name, array in gradient.items():
        assert array.any()
        np.testing.assert_array_equal(sum(part[2][name] for part in parts), array)


def end(code: int | None, err: str = REASON, **more: object) -> End:
    return End(code, "", err, was_sent=True, **more)  # type: ignore[arg-type]


def traceback_in(file: str) -> str:
    """Return the traceback of Python when it is interrupted before anything can catch that."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{file}", line 3, in <module>',
        "KeyboardInterrupt",
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("target", "number", "ended", "fault"),
    [
        ("rank 2", KILL, end(1), None),
        ("rank 2", KILL, end(2), "exit code 2"),
        ("rank 2", KILL, end(1, ""), "exit code 1 without a reason"),
        ("rank 2", KILL, end(1, f"Traceback\n{REASON}"), "a traceback"),
        ("rank 2", TERM, end(75), None),
        ("rank 2", TERM, end(1), "exit code 1"),
        (MPIRUN, TERM, end(1), None),
        (STARTER, TERM, end(75), None),
        (STARTER, TERM, end(-TERM, ""), "exit code -15"),
        (STARTER, TERM, end(-TERM, "", was_caught=False), None),
        (STARTER, INT, end(130, "hpcbal: interrupted", was_caught=False), None),
        (STARTER, INT, end(130, "hpcbal: interrupted"), "exit code 130"),
        (STARTER, INT, end(1, traceback_in("/usr/lib/python3.11/importlib/x.py"), was_caught=False), None),
        (STARTER, INT, end(1, traceback_in(hpcbal.__file__), was_caught=False), "exit code 1"),
        ("rank 2", INT, end(1, f"{traceback_in('/x/runpy.py')}\n{REASON}", was_caught=False), None),
        ("rank 2", INT, end(1, traceback_in("/x/runpy.py"), was_caught=False), "no reason"),
        (STARTER, KILL, end(-KILL, ""), None),
        (STARTER, KILL, end(-KILL, "", num_left=2), "2 processes were left behind"),
        (STARTER, INT, end(None), f"it hung for {LONGEST_S:g} s"),
    ],
)
def test_an_end_needs_the_right_code_and_a_reason(
    target: str, number: signal.Signals, ended: End, fault: str | None
) -> None:
    assert unexplained(Disturbance(target, number, 1, 0.1), ended) == fault


def test_a_signal_that_came_too_late_must_not_matter() -> None:
    late = Disturbance(MPIRUN, KILL, 2, 0.1)
    assert unexplained(late, End(0, "", "", was_sent=False)) is None
    assert unexplained(late, End(1, "", REASON, was_sent=False)) == "exit code 1"


def test_one_bit_is_a_difference() -> None:
    metrics = {"loss": 0.5}
    whole = Outcome(
        {"a": {"w": np.array([1.0, 2.0])}}, {"a": [(1, 0, metrics)]}, {"a": {0: metrics}}, {"a": ("done", 1)}
    )
    assert difference(whole, whole) is None
    bit = replace(whole, weights={"a": {"w": np.array([1.0, np.nextafter(2.0, 3.0)])}})
    assert difference(bit, whole) == "a: w differs by up to 4.4e-16"
    assert difference(replace(whole, weights={}), whole) == "checkpoints of []"
    other = {"a": {0: {"loss": 0.25}}}
    assert "a: pass 0: {'loss': 0.25}, not" in str(difference(replace(whole, epochs=other), whole))
    rows = [{"epoch": 1, "num_slots": 2.0}, {"epoch": 2, "num_slots": 2.0}]
    recorded = replace(whole, rows={"a": rows})
    assert difference(recorded, recorded) is None
    lacking = replace(whole, rows={"a": [rows[0], {"epoch": 2}]})
    fault = "a: metrics.jsonl differs: {'epoch': 2}, not {'epoch': 2, 'num_slots': 2.0}"
    assert difference(lacking, recorded) == fault
    assert "differs: None, not" in str(difference(whole, recorded))
    assert "results.csv" in str(difference(replace(whole, results={"a": ("failed", 1)}), whole))


def test_a_ledger_without_its_end_does_not_add_up(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(RunFinishedLine("suspended", 75, 0.0, 0, 0.0))
    assert str(ledger_fault(tmp_path)).startswith("its last line is RunFinishedLine(outcome='suspended'")
