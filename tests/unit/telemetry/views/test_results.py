"""results.csv and the last table."""

import dataclasses

import pytest

from hpcbal.errors import InputError
from hpcbal.telemetry import ResultRow, read_results, render_results, write_results
from hpcbal.telemetry.views import results
from hpcbal.telemetry.views.kinds import ENSEMBLE

ROWS = [
    ResultRow("resnet, deep", "done", 12, 1 / 3, 61.25, 122.5),
    ResultRow('dense"net', "failed", 0, None, 3.0, 3.0, "nan: the loss,\nat step 3"),
]


def test_rows_come_back_from_the_file(tmp_path):
    write_results(tmp_path / "results.csv", ROWS)
    assert read_results(tmp_path / "results.csv") == ROWS
    assert (
        (tmp_path / "results.csv")
        .read_text()
        .startswith("name,state,epochs,best_val_accuracy,wall_time_s,slot_seconds,cause\n")
    )


def test_the_table_has_totals_and_causes():
    lines = render_results(ROWS).splitlines()
    assert lines[0].split() == [
        *["name", "state", "epochs", "best", "val", "accuracy"],
        *["wall", "time", "slot-seconds", "cause"],
    ]
    assert lines[2].split() == ["resnet,", "deep", "done", "12", "0.3333", "0:01:01", "122.5"]
    assert lines[-1].split() == ["2", "DNNs", "1", "done", "12", "0.3333", "125.5", "1", "failed"]
    assert not any(line != line.rstrip() for line in lines)


def test_without_failures_there_is_no_cause():
    assert "cause" not in render_results(ROWS[:1])


def test_no_rows_make_a_table_too():
    assert render_results([]).splitlines()[-1].startswith("0 DNNs")


def test_a_missing_or_foreign_file_is_reported(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_results(tmp_path / "results.csv")
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"not a results\.csv of hpcbal"):
        read_results(tmp_path / "results.csv")


@pytest.mark.parametrize("damage", ["nan", "1e999", "soon", "9" * 5000, '"' + "x" * 200_000])
def test_a_damaged_number_is_reported(tmp_path, damage):
    head = "name,state,epochs,best_val_accuracy,wall_time_s,slot_seconds,cause\n"
    (tmp_path / "results.csv").write_text(f"{head}a,done,3,0.5,{damage},1.0,\n")
    with pytest.raises(InputError, match=r"not a results\.csv of hpcbal"):
        read_results(tmp_path / "results.csv")


def test_another_kind_of_run_names_its_best_value_and_its_jobs(tmp_path, monkeypatch):
    view = dataclasses.replace(
        ENSEMBLE, job="job", best_key="best_objective", best_title="best objective", more_is_better=False
    )
    rows = [ResultRow("nmf", "done", 3, 0.5, 1.0, 2.0), ResultRow("lda", "done", 4, 0.25, 1.0, 2.0)]
    write_results(tmp_path / "results.csv", rows, view)
    assert (tmp_path / "results.csv").read_text().startswith("name,state,epochs,best_objective,wall_time_s,")
    with pytest.raises(InputError, match="best_val_accuracy"):
        read_results(tmp_path / "results.csv")
    monkeypatch.setattr(results, "VIEWS", {"ensemble": ENSEMBLE, "other": view})
    assert read_results(tmp_path / "results.csv") == rows
    lines = render_results(rows, view).splitlines()
    assert "best objective" in lines[0]
    assert lines[-1].split()[:5] == ["2", "jobs", "2", "done", "7"]
    assert lines[-1].split()[5] == "0.2500"
