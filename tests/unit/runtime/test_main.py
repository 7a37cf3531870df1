"""A rank that cannot leave with the others ends the job: they wait for it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from hpcbal.errors import OutputError
from hpcbal.runtime.handoff.activity import Activity


def test_an_exit_code_that_cannot_be_recorded_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    main: Any = importlib.import_module("hpcbal.runtime.main")
    full, ended = OutputError("start.jsonl: cannot write: the file system is full"), []

    class End:
        def __init__(self, world: object, activity: Activity) -> None:
            """As `JobEnd`."""

        def abort_for(self, error: BaseException) -> None:
            ended.append(error)

    def refuse(*_: object) -> None:
        raise main.ReportedError(2)

    def cannot_write(*_: object) -> None:
        raise full

    monkeypatch.setattr(main, "JobEnd", End)
    monkeypatch.setattr(main, "_run", refuse)
    monkeypatch.setattr(main.StartFile, "leave_exit_code", cannot_write)
    with pytest.raises(OutputError):
        main.run_rank(None, None, None, Activity())
    assert ended == [full]
