"""The file of earlier runs: appended to, filtered by key, damaged, foreign, long, missing."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from ledger_lines import a

from hpcbal.errors import InputError
from hpcbal.planning.calibration import (
    MOST_BYTES,
    EarlierRun,
    RunKey,
    append_run,
    calibration_file,
    read_runs,
    runs_in,
    site_name,
)
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import NodeFacts, RunFinishedLine, RunStartedLine, WholeRun

KEY = RunKey("ensemble", "torch", "alps")
RUN = EarlierRun(100.0, 5.0, 110.0, 1.0, 2, 8, 0.9, 0.8)


def read(path: Path, key: RunKey = KEY) -> tuple[list[EarlierRun], list[str]]:
    said: list[str] = []
    return read_runs(key, said.append, path), said


def test_runs_come_back_in_order_and_only_those_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "state" / "hpcbal" / "runs.jsonl"
    later = dataclasses.replace(RUN, active_s=120.0, predicted_busy=None)
    for key, run in (
        (KEY, RUN),
        (dataclasses.replace(KEY, site="jura"), RUN),
        (dataclasses.replace(KEY, backend="emulated"), RUN),
        (dataclasses.replace(KEY, kind="jobs"), RUN),
        (KEY, later),
    ):
        append_run(key, run, path)
    assert read(path) == ([RUN, later], [])


def test_without_a_file_there_are_no_runs(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == ([], [])


def test_a_file_that_cannot_be_read_is_one_warning(tmp_path: Path) -> None:
    runs, said = read(tmp_path)
    assert runs == []
    (sentence,) = said
    assert "cannot be read" in sentence


def test_damaged_and_foreign_lines_are_skipped_with_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_run(KEY, RUN, path)
    whole = json.loads(path.read_text(encoding="utf-8"))
    with path.open("a", encoding="utf-8") as file:
        file.write("not json\n\n[1]\n")
        for changes in (
            {"format": 7},
            {"active_s": 0.0},
            {"busy": "much"},
            {"predicted_s": None},
            {"busy": 2},
        ):
            file.write(json.dumps(whole | changes) + "\n")
        file.write(json.dumps({name: value for name, value in whole.items() if name != "busy"}) + "\n")
    append_run(KEY, RUN, path)
    with path.open("ab") as file:
        file.write(b'{"format": 1, "kind": "ensem')  # a run is killed while it writes
    runs, said = read(path)
    assert runs == [RUN, RUN]
    assert len(said) == 1
    assert "skipped 9 lines" in said[0]


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_run(KEY, RUN, path)
    line = path.read_bytes()
    path.write_bytes(line * (MOST_BYTES // len(line) + 100))
    runs, said = read(path)
    assert len(runs) == MOST_BYTES // len(line)
    assert said == []


def test_the_file_is_where_the_user_says_or_in_the_directory_for_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCBAL_CALIBRATION", "mine.jsonl")
    assert calibration_file() == Path("mine.jsonl")
    monkeypatch.delenv("HPCBAL_CALIBRATION")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert calibration_file() == tmp_path / "hpcbal" / "runs.jsonl"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibration_file() == tmp_path / ".local" / "state" / "hpcbal" / "runs.jsonl"


def test_a_user_without_a_home_directory_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCBAL_CALIBRATION")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert calibration_file() == Path(os.devnull)
    append_run(KEY, RUN)
    assert read_runs(KEY, pytest.fail) == []


def test_the_site_is_the_cluster_also_on_its_login_node(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("# comment\nclustername = alps  # ours\nSlurmctldHost=a\n", encoding="utf-8")
    assert site_name({"SLURM_CONF": str(conf)}) == "alps"
    assert site_name({"SLURM_CONF": str(conf), "SLURM_CLUSTER_NAME": "jura"}) == "jura"
    assert site_name({"SLURM_CONF": str(tmp_path / "none")}) == ""


def write_run(
    directory: Path,
    predicted_s: float | None = 100.0,
    kind: str = "ensemble",
    computed_by: str = "torch",
    outcome: str | None = "done",
    has_whole: bool = True,
) -> None:
    """Write the ledger of a run of two nodes; without an outcome it was killed."""
    whole = WholeRun(predicted_s, 0.9, 5.0, 110.0, 0.8, (0.8,) * 8, 1, 1.0) if has_whole else None
    directory.mkdir(parents=True)
    with Ledger(directory / "ledger.jsonl") as ledger:
        nodes = (NodeFacts("m", 4), NodeFacts("n", 4))
        ledger.append(a(RunStartedLine, kind=kind, nodes=nodes, computed_by=computed_by))
        if outcome is not None:
            ledger.append(a(RunFinishedLine, outcome=outcome, whole=whole))


def test_ledgers_tell_the_same_and_those_that_tell_nothing_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "good")
    write_run(tmp_path / "runs" / "other-kind", kind="jobs")
    write_run(tmp_path / "runs" / "other-backend", computed_by="emulated")
    write_run(tmp_path / "runs" / "killed", outcome=None)
    write_run(tmp_path / "runs" / "stopped", outcome="suspended")
    write_run(tmp_path / "runs" / "old", has_whole=False)
    write_run(tmp_path / "runs" / "not-predicted", predicted_s=None)
    write_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "ledger.jsonl").write_text('{"schema": 99}\n{"schema": 99}\n', encoding="utf-8")
    said: list[str] = []
    assert runs_in([tmp_path / "runs", tmp_path / "damaged"], KEY, said.append) == [RUN]
    (sentence,) = said
    assert "skipped 5 of 8 runs" in sentence
    assert runs_in([tmp_path / "runs" / "good"], KEY, pytest.fail) == [RUN]


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got no output directory of a run"):
        runs_in([tmp_path], KEY, pytest.fail)
