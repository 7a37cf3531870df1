"""results.csv and the last table."""

import dataclasses

import pytest

from hpcbal.errors import InputError
from hpcbal.kinds import JOBS, PARAMSERVER
from hpcbal.telemetry.views.results import ResultRow, read_results, render_results, write_results
from hpcbal.telemetry.views.summary import differing_settings, main_metric_of, summary_of

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


EPOCHS = [
    {"val_accuracy": 0.5, "val_loss": 1.5, "accuracy": 0.25, "loss": 2.0},
    {"val_accuracy": 0.75, "val_loss": 1.0, "accuracy": 0.5, "loss": 1.0},
    {"val_accuracy": 0.625, "val_loss": 0.5, "accuracy": 1.0, "loss": float("nan")},
]


def test_a_summary_has_the_best_and_the_final_value_of_each_metric():
    assert summary_of(EPOCHS) == {
        "best_epoch": 2,
        "best_val_accuracy": 0.75,
        "final_val_accuracy": 0.625,
        "best_val_loss": 0.5,
        "final_val_loss": 0.5,
        "best_accuracy": 1.0,
        "final_accuracy": 1.0,
        "best_loss": 1.0,
        "final_loss": None,
    }
    trained_only = [{key: value for key, value in each.items() if "val" not in key} for each in EPOCHS]
    found = summary_of(trained_only)
    assert "best_val_accuracy" not in found
    assert (found["best_accuracy"], found["best_epoch"]) == (1.0, 3)
    assert summary_of([]) == {"best_epoch": None}


def test_settings_are_the_keys_in_which_jobs_differ():
    same = {"model": "m:f", "stop": {"max_epochs": 3}, "balance": None}
    configs = {
        "a": {"name": "a", "args": {"depth": 8, "widths": [1, 2]}, **same},
        "b": {"name": "b", "args": {"depth": 14, "widths": [1, 2], "wide": True}, **same},
    }
    assert differing_settings(configs) == {
        "a": {"args.depth": "8", "args.wide": ""},
        "b": {"args.depth": "14", "args.wide": "true"},
    }
    assert differing_settings({"a": configs["a"]}) == {"a": {}}


def rows_of(epochs):
    numbers = summary_of(epochs)
    key = f"best_{main_metric_of([epochs])}"
    best = numbers.pop(key)
    numbers["bad_samples"] = 2
    key = "" if key == "best_val_accuracy" else key
    return [ResultRow("a", "done", 3, best, 1.0, 2.0, "", numbers, {"args.depth": "8"}, key)]


def test_numbers_and_settings_come_back_from_the_file(tmp_path):
    write_results(tmp_path / "results.csv", rows_of(EPOCHS))
    assert read_results(tmp_path / "results.csv") == rows_of(EPOCHS)
    names = (tmp_path / "results.csv").read_text().splitlines()[0].split(",")
    assert names[3:5] == ["best_val_accuracy", "wall_time_s"]
    assert names[7:9] == ["best_epoch", "final_val_accuracy"]
    assert names[-2:] == ["bad_samples", "args.depth"]


REGRESSION = [
    {"loss": 4.0, "mae": 1.5, "val_loss": 5.0, "val_mae": 1.75},
    {"loss": 2.0, "mae": 1.0, "val_loss": 2.5, "val_mae": 1.25},
]


def test_a_run_is_compared_by_its_own_metric(tmp_path):
    rows = rows_of(REGRESSION)
    write_results(tmp_path / "results.csv", rows)
    assert (tmp_path / "results.csv").read_text().startswith("name,state,epochs,best_val_mae,wall_time_s,")
    assert read_results(tmp_path / "results.csv") == rows
    lines = render_results(rows).splitlines()
    assert "best val mae" in lines[0]
    assert lines[2].split()[3:6] == ["1.2500", "2", "1.2500"]
    assert lines[-1].split()[5] == "1.2500", "the least, because it is an error"


def test_the_table_shows_the_epoch_of_the_best_value_and_what_the_checkpoint_holds():
    lines = render_results(rows_of(EPOCHS)).splitlines()
    assert lines[0].split()[3:9] == ["best", "val", "accuracy", "in", "epoch", "last"]
    assert lines[2].split()[3:6] == ["0.7500", "2", "0.6250"]
    assert lines[-1] == "checkpoint.h5 of a DNN holds its last epoch, not its best"
    assert "checkpoint" not in render_results(rows_of([*EPOCHS[::2], EPOCHS[1]]))


def test_without_validation_the_table_shows_the_training_accuracy():
    rows = rows_of([{"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.75, "loss": 0.5}])
    lines = render_results(rows).splitlines()
    assert "best train accuracy" in lines[0]
    assert lines[2].split()[3:6] == ["0.7500", "2", "0.7500"]


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


def test_another_kind_of_run_names_its_best_value_and_its_jobs(tmp_path):
    rows = [
        ResultRow("nmf", "done", 3, 0.5, 1.0, 2.0, best_key="best_log_loss"),
        ResultRow("lda", "done", 4, 0.25, 1.0, 2.0, best_key="best_log_loss"),
    ]
    write_results(tmp_path / "results.csv", rows, JOBS)
    assert (tmp_path / "results.csv").read_text().startswith("name,state,epochs,best_log_loss,wall_time_s,")
    assert read_results(tmp_path / "results.csv") == rows
    lines = render_results(rows, JOBS).splitlines()
    assert "best train log loss" in lines[0]
    assert lines[0].endswith("machine-seconds")
    # neither a best loss of unlike apps, nor a sum of times on machines that jobs share
    assert lines[-1].split() == ["2", "jobs", "2", "done", "7"]
    job = render_results(rows[:1], PARAMSERVER).splitlines()
    assert job[0].endswith("executor-seconds")
    assert job[-1].split() == ["1", "job", "1", "done", "3", "0.5000", "2.0"]


def test_a_setting_in_a_row_that_is_cut_off_counts_as_not_given(tmp_path):
    row = ResultRow("a", "done", 3, 0.5, 1.0, 2.0, settings={"batch_size": "32"})
    write_results(tmp_path / "results.csv", [row, dataclasses.replace(row, name="b")])
    text = (tmp_path / "results.csv").read_text()
    (tmp_path / "results.csv").write_text(text[: text.rindex(",")])
    assert [row.settings for row in read_results(tmp_path / "results.csv")] == [
        {"batch_size": "32"},
        {"batch_size": ""},
    ]
