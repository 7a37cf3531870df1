"""`hpcbal report`: what it tells of what it wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ledger_lines import a

from hpcbal.cli import main
from hpcbal.events.ensemble import DnnFailed
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import NodeFacts, RunStartedLine

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(a(RunStartedLine, name="demo", nodes=(NodeFacts("n0", 1),)))
    return tmp_path


def test_the_page_and_its_plots_are_told(run_directory: Path, capsys: Capture) -> None:
    assert main(["report", str(run_directory)]) == 0
    page, plots = capsys.readouterr().out.splitlines()
    assert page == f"report: {run_directory}/report.html"
    assert plots.startswith("plots: ")


def test_no_success_is_told_if_the_plots_cannot_be_written(run_directory: Path, capsys: Capture) -> None:
    (run_directory / "report-plots").write_text("in the way")
    assert main(["report", str(run_directory)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "report-plots: cannot make the directory of the plots" in captured.err
    assert main(["report", str(run_directory), "--no-plots"]) == 0
    assert capsys.readouterr().out == f"report: {run_directory}/report.html\n"


def test_a_damaged_ledger_is_one_warning_and_is_noted_on_the_page(
    run_directory: Path, capsys: Capture
) -> None:
    with (run_directory / "ledger.jsonl").open("a") as file:
        file.write('{"schema": 2, "seq": null}\n')
    assert main(["report", "--no-plots", str(run_directory)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{run_directory}/ledger.jsonl is damaged: line 2 is wrong (seq is null, allowed: a whole" in line
    assert "line 2 is wrong" in (run_directory / "report.html").read_text(encoding="utf-8")


def test_the_values_of_an_ensemble_keep_their_names_in_json(run_directory: Path, capsys: Capture) -> None:
    """Fields have neutral names in the program; scripts that read the JSON do not notice."""
    with Ledger(run_directory / "ledger.jsonl") as ledger:
        ledger.append(DnnFailed("job", "nan", ""))
    assert main(["report", str(run_directory), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["kind"], values["run_kind"]) == ("run", "ensemble")
    (dnn,) = values["dnns"]
    assert (dnn["name"], dnn["best_val_accuracy"]) == ("job", None)
    assert values.keys().isdisjoint({"jobs", "job", "best"})


@pytest.mark.parametrize("verb", [["report", "--no-plots", "--output"], ["compare", "--html"]])
def test_a_file_of_the_user_is_not_replaced_by_a_page(
    verb: list[str], run_directory: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Capture
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    page, notes, pipe = (elsewhere / name for name in ("page.html", "notes.txt", "pipe"))
    for _ in range(2):  # its own page is written anew
        assert main([*verb, str(page), str(run_directory)]) == 0
    notes.write_text("a week of work")
    capsys.readouterr()
    assert main([*verb, str(notes), str(run_directory)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == f"hpcbal: {notes}: exists, and is no page of hpcbal; choose another name, or remove it\n"
    )
    assert notes.read_text() == "a week of work"
    notes.write_text("")  # as mktemp makes it
    assert main([*verb, str(notes), str(run_directory)]) == 0
    os.mkfifo(pipe)
    capsys.readouterr()
    assert main([*verb, str(pipe), str(run_directory)]) == 2
    assert capsys.readouterr().err == (
        f"hpcbal: {pipe}: it is a pipe or a device, not a file; give the name of a file\n"
    )
    assert main([*verb, ".", str(run_directory)]) == 2
    assert "hpcbal: .: cannot write: Is a directory" in capsys.readouterr().err
