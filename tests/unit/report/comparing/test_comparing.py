"""Runs side by side: values, tables, JSON and the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.cli import main
from hpcbal.config import load_config, resolved_yaml
from hpcbal.errors import InputError
from hpcbal.events.history import EpochFacts
from hpcbal.report.comparing.reading import read_comparison
from hpcbal.report.comparing.text import render_comparison
from hpcbal.report.page.page import render_comparison_page

EVIL = "</script><b onclick=x()>"
MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path, history: Any) -> MakeRun:
    """The files of a run: its ledger, with the accuracies of each DNN after each epoch, and its config."""

    def make(
        folder: str,
        accuracies: dict[str, tuple[float, ...]],
        metric: str = "val_accuracy",
        pruned: tuple[str, ...] = (),
        **sections: Any,
    ) -> Path:
        directory = tmp_path / folder
        directory.mkdir()
        mine = type(history)(directory)
        mine.start(0).round(0, 0, {name: (slot,) for slot, name in enumerate(accuracies)})
        for name, values in accuracies.items():
            for at, value in enumerate(values, 1):
                facts = EpochFacts(wait_s=0.0, num_steps=1, num_samples=1, num_trained=1, trained_s=1.0)
                metrics = {metric: value}
                costs = {"seconds": 1.0, "busy_s": 1.0}
                mine.add(float(at), "epoch-done", dnn_id=name, metrics=metrics, facts=facts, **costs)
        for name in accuracies:
            event = "dnn-pruned" if name in pruned else "dnn-done"
            mine.leave(9.0, name).add(9.0, event, dnn_id=name, detail="")
        mine.write()
        stop = {"monitor": metric, "max_epochs": 5}
        defaults = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "batch_size": 8, "stop": stop}
        dnns = [{"name": name, "model": "hpcbal.models:softmax"} for name in accuracies]
        config = {"defaults": defaults, "dnns": dnns, "output": {"dir": str(directory)}, **sections}
        written = tmp_path / f"{folder}.yaml"
        written.write_text(yaml.safe_dump(config), encoding="utf-8")
        (directory / "config.yaml").write_text(resolved_yaml(load_config(written)), encoding="utf-8")
        return directory

    return make


@pytest.fixture
def two(make_run: MakeRun) -> list[Path]:
    slow = {"optimizer": {"name": "sgd", "learning_rate": 0.01}, "batch_size": 8, "stop": {"max_epochs": 5}}
    first = make_run("first", {"a": (0.5, 0.75, 0.625), "b": (0.25,)})
    return [first, make_run("second", {"a": (0.5, 0.5), "c": (0.875,)}, seed=3, defaults=slow)]


def test_dnns_of_one_name_are_neighbours_and_the_better_one_is_marked(two: list[Path]) -> None:
    found = read_comparison(two)
    assert [(d.dnn, d.run, d.best, d.best_epoch, d.last, d.is_best) for d in found.dnns] == [
        ("a", "first", 0.75, 2, 0.625, True),
        ("a", "second", 0.5, 1, 0.5, False),
        ("b", "first", 0.25, 1, 0.25, False),
        ("c", "second", 0.875, 1, 0.875, False),
    ]
    assert [(run.best_dnn, run.best, run.num_done) for run in found.runs] == [("a", 0.75, 2), ("c", 0.875, 2)]
    assert found.metrics == ("val_accuracy",)
    (first, _) = found.runs
    assert first.slot_hours == pytest.approx(2 * 9 / 3600)


def test_settings_are_those_that_differ_of_runs_and_of_their_common_dnns(two: list[Path]) -> None:
    found = {each.key: dict(each.value_by_run) for each in read_comparison(two).settings}
    assert found == {
        "seed": {"first": "0", "second": "3"},
        "dnns.a.optimizer.learning_rate": {"first": "0.1", "second": "0.01"},
    }


def test_the_tables_show_all_of_it(two: list[Path]) -> None:
    text = render_comparison(read_comparison(two))
    assert "best val_accuracy" in text
    lines = text.splitlines()
    row = next(line for line in lines if line.startswith("a    first"))
    assert row.split()[:7] == ["a", "first", "done", "3", "0.7500*", "2", "0.6250"]
    assert "* the best of the runs that have this DNN" in lines
    assert next(line for line in lines if line.startswith("seed")).split() == ["seed", "0", "3"]


def test_pruned_dnns_are_counted(make_run: MakeRun) -> None:
    found = read_comparison([make_run("x", {"a": (0.5,), "b": (0.75,)}, pruned=("a",))])
    assert [each.state for each in found.dnns] == ["pruned", "done"]
    assert "1 of 2 done, 1 pruned" in render_comparison(found)
    assert "1 of 2 done, 1 pruned" in render_comparison_page(found)


def test_a_loss_is_better_if_it_is_lower(make_run: MakeRun) -> None:
    values = {"x": (0.5, 0.25), "y": (0.75, 0.125)}
    found = read_comparison([make_run(name, {"a": its}, "val_loss") for name, its in values.items()])
    assert [(each.best, each.is_best) for each in found.dnns] == [(0.25, False), (0.125, True)]


def test_runs_of_one_name_are_told_apart_by_their_directories(make_run: MakeRun, two: list[Path]) -> None:
    assert [run.label for run in read_comparison(two).runs] == ["first", "second"]  # both are called birds


def test_a_run_whose_config_is_lost_is_compared_without_settings(two: list[Path]) -> None:
    (two[1] / "config.yaml").unlink()
    found = read_comparison(two)
    assert found.settings == ()
    assert [each.best for each in found.dnns if each.run == "second"] == [0.5, 0.875]
    assert "config.yaml: cannot be used, so settings are not compared" in found.problems[0]


def test_the_verb_prints_tables_or_json_and_writes_the_page(
    two: list[Path], tmp_path: Path, capsys: Any
) -> None:
    directories = [str(each) for each in two]
    page = tmp_path / "page.html"
    assert main(["compare", *directories, "--html", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"\npage: {page}\n")
    text = page.read_text(encoding="utf-8")
    assert "<b>0.7500</b>" in text
    assert text.count("<svg") == 2
    assert 'data-job="second: c"' in text
    assert main(["compare", *directories, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in values["runs"]] == ["first", "second"]
    assert values["dnns"][0]["last_metrics"] == {"val_accuracy": 0.625}


def test_texts_of_a_run_do_not_act_in_the_page(make_run: MakeRun) -> None:
    run = make_run("one", {"a": (0.5,)}, data={"args": {"path": EVIL}})
    other = make_run("other", {"a": (0.5,)})
    page = render_comparison_page(read_comparison([run, other]))
    assert EVIL not in page
    assert "&lt;/script&gt;&lt;b onclick=x()&gt;" in page


def test_wrong_input_is_refused_in_a_sentence(two: list[Path], tmp_path: Path, capsys: Any) -> None:
    assert main(["compare", str(two[0]), str(two[0] / ".." / "first")]) == 2
    assert "given twice; give each run once" in capsys.readouterr().err
    assert main(["compare", str(two[0]), str(tmp_path / "no")]) == 2
    assert "no such directory; give the output directory of a run" in capsys.readouterr().err
    with pytest.raises(InputError, match="--metric: got 'f1', allowed: val_accuracy"):
        read_comparison(two, "f1")


def test_directories_in_which_nothing_has_started_are_named(
    two: list[Path], tmp_path: Path, capsys: Any
) -> None:
    waiting, other = tmp_path / "waiting", tmp_path / "notes.txt"
    waiting.mkdir()
    (waiting / "config.yaml").write_text("schema: 1")
    other.write_text("mine")
    assert main(["compare", *map(str, (*two, waiting, other))]) == 0
    shown = capsys.readouterr()
    assert "warning: not compared: " in shown.err
    assert "waiting: no ledger.jsonl: the run has not started yet" in shown.err
    assert "notes.txt" in shown.err
    assert main(["compare", str(waiting)]) == 2
