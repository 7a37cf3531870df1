"""A rank that cannot leave with the others ends the job: they wait for it."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

from hpcbal.cluster.started import Launcher
from hpcbal.errors import OutputError
from hpcbal.runtime.health.liveness import Liveness


def test_an_exit_code_that_cannot_be_recorded_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = importlib.import_module("hpcbal.runtime.job")
    full, ended = OutputError("start.jsonl: cannot write: the file system is full"), []

    class End:
        def __init__(self, world: object, liveness: Liveness) -> None:
            """As `JobEnd`."""

        def abort_for(self, error: BaseException) -> None:
            ended.append(error)

    def refuse(*_: object) -> None:
        raise job.ReportedError(2)

    def cannot_write(*_: object) -> None:
        raise full

    monkeypatch.setattr(job, "JobEnder", End)
    monkeypatch.setattr(job.StartFile, "leave_exit_code", cannot_write)
    monkeypatch.setattr(logging, "raiseExceptions", True)  # which the job changes, and the test puts back
    with pytest.raises(OutputError):
        job.run_in_job(Launcher("none", None, None), Liveness(), refuse)
    assert ended == [full]
