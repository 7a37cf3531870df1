"""Whole runs in one process: scheduler, preprocessor and trainers are threads."""

from __future__ import annotations


def test_an_ensemble_is_trained_to_its_end(in_process) -> None:
    assert in_process.run() == 0
    assert in_process.state("a").epoch == 2
    assert in_process.state("b").epoch == 3
    (finished,) = in_process.events("run-finished")
    assert (finished.outcome, finished.exit_code) == ("done", 0)
