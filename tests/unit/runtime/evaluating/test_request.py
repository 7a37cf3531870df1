"""The run and the data of an evaluation are decided before any rank starts; mistakes are explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.config import load_config, resolved_yaml
from hpcbal.errors import ConfigError, InputError
from hpcbal.events.history import Position
from hpcbal.runtime.evaluating import request
from hpcbal.runtime.evaluating.request import EvaluationRequest, open_trained
from hpcbal.runtime.launch import num_ranks_to_evaluate
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.status import write_status

CONFIG = """
name: lab
data: {{test_fraction: {test_fraction}}}
defaults: {{optimizer: {{name: sgd, learning_rate: 0.1}}, batch_size: 4, stop: {{max_epochs: 2}}}}
dnns:
  - {{name: deep-8, model: "hpcbal.models:resnet", args: {{depth: 8}}}}
  - {{name: deep-14, model: "hpcbal.models:resnet", args: {{depth: 14}}}}
  - {{name: wide, model: "hpcbal.models:resnet", args: {{depth: 8}}}}
slots: {{per_node: {slots}}}
"""


@pytest.fixture
def run_of(tmp_path: Path) -> Any:
    def make(test_fraction: float = 0.1, slots: str = "auto") -> Path:
        source = tmp_path / "run.yaml"
        source.write_text(CONFIG.format(test_fraction=test_fraction, slots=slots))
        run = tmp_path / "run"
        run.mkdir()
        (run / "config.yaml").write_text(resolved_yaml(load_config(source)))
        for name in ("deep-8", "wide"):
            state = TrainingState(
                name, 2, Position(2, 0), (), {"weights/a": np.ones(2), "optimizer/b": np.ones(1)}
            )
            write_checkpoint(run / "dnns" / name, state)
        return run

    return make


def test_dnns_without_a_checkpoint_are_left_out_with_the_reason(run_of: Any) -> None:
    trained = open_trained(EvaluationRequest(run_of()))
    assert [dnn.name for dnn in trained.dnns] == ["deep-8", "wide"]
    assert trained.left_out == {"deep-14": "it has no whole checkpoint"}
    assert (trained.data, trained.notes) == ("test", ())


def test_dnns_that_failed_are_left_out_although_they_have_a_checkpoint(
    run_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {
        "kind": "ensemble",
        "dnns": [{"name": "wide", "state": "failed"}, {"name": "deep-8", "state": "done"}],
    }
    monkeypatch.setattr(request, "read_status", lambda directory: status)
    trained = open_trained(EvaluationRequest(run_of(), patterns=("wide", "deep-8")))
    assert trained.left_out == {"wide": "it failed in training"}


def test_modules_are_found_where_the_run_found_them(
    run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    mine, gone = tmp_path / "mine", tmp_path / "gone"
    mine.mkdir()
    (mine / "nets_of_mine.py").write_text("def net(input_shape, num_classes): return None")
    run = run_of()
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("hpcbal.models:resnet", "nets_of_mine:net", 1))
    config.write_text(config.read_text().replace("depth: 8", "{}", 1).replace("args:\n    {}", "args: {}"))
    status: Any = new_status("lab", 2)
    status["import_roots"] = [str(gone), str(mine)]
    write_status(run / "status.json", status)
    assert open_trained(EvaluationRequest(run)).import_roots == (str(mine),)
    assert sys.path.index(str(mine)) < sys.path.index(str(run.resolve()))


def test_pruned_dnns_are_evaluated_and_mentioned_unless_dnns_were_named(
    run_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {
        "kind": "ensemble",
        "dnns": [{"name": "wide", "state": "pruned"}, {"name": "deep-8", "state": "done"}],
    }
    monkeypatch.setattr(request, "read_status", lambda directory: status)
    run = run_of()
    trained = open_trained(EvaluationRequest(run))
    assert [dnn.name for dnn in trained.dnns] == ["deep-8", "wide"]
    assert "includes DNNs that ended early (1 of 2)" in trained.notes[0]
    assert open_trained(EvaluationRequest(run, patterns=("wide", "deep-8"))).notes == ()


def test_without_a_test_set_the_validation_set_is_taken_and_named(run_of: Any) -> None:
    trained = open_trained(EvaluationRequest(run_of(test_fraction=0.0)))
    assert trained.data == "validation"
    assert "no test set" in trained.notes[0]


def test_patterns_select_dnns_in_the_order_of_the_file(run_of: Any) -> None:
    run = run_of()
    trained = open_trained(EvaluationRequest(run, patterns=("wide", "deep-*")))
    assert [dnn.name for dnn in trained.dnns] == ["deep-8", "wide"]
    assert [d.name for d in open_trained(EvaluationRequest(run, patterns=("*8",))).dnns] == ["deep-8"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"patterns": ("wid",)},
            r"no DNN matches 'wid' \(did you mean 'wide'\?\), allowed: .*deep-8, deep-14",
        ),
        ({"patterns": ("deep-14",)}, "no DNN can be evaluated: deep-14: it has no whole checkpoint"),
        ({"data": "tset"}, "--data: got 'tset', allowed: test, validation, the import path"),
        ({"data": "x" * 300}, r"^x+\.\.\.x+: File name too long; give another path$"),
        ({"data": "~nobody-here/x.npy"}, "--data: got '~nobody-here/x.npy', allowed: test, "),
        (
            {"data": "."},
            r"--data: of \. only samples are read, no labels; give the file .* --to predictions.* "
            r"to compare with labels, a dataset: --data hpcbal\.data:hdf5 .*--data-args",
        ),
        ({"data": "a.b:c", "no_labels": True}, "--no-labels: nothing to compare with; give the file .* --to"),
        ({"no_labels": True}, "--no-labels: only with --data and the import path"),
        ({"ensemble": "mean"}, "--ensemble, --force: only with --to"),
        ({"to": Path("x.txt")}, r"--to: got x\.txt, allowed: a name that ends in \.parquet, \.h5, \.csv"),
        ({"data": "test", "data_args": {"a": 1}}, "--data-args: only with --data and a dataset or samples"),
    ],
)
def test_wrong_arguments_are_explained(run_of: Any, given: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        open_trained(EvaluationRequest(run_of(), **given))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none", "no such directory"), (tmp_path, r"no config\.yaml: not the")):
        with pytest.raises(InputError, match=problem):
            open_trained(EvaluationRequest(path))


def test_emulated_networks_have_no_outputs(run_of: Any) -> None:
    run = run_of()
    text = (run / "config.yaml").read_text()
    rates = "rates: {deep-8: {1: 9}, deep-14: {1: 9}, wide: {1: 9}}"
    (run / "config.yaml").write_text(text.replace("name: auto", "name: emulated").replace("rates: {}", rates))
    with pytest.raises(InputError, match="emulated networks have no outputs"):
        open_trained(EvaluationRequest(run))


def test_a_damaged_configuration_is_refused(run_of: Any) -> None:
    run = run_of()
    (run / "config.yaml").write_text("dnns: 3")
    with pytest.raises(ConfigError):
        open_trained(EvaluationRequest(run))


def test_one_rank_computes_on_each_slot_or_as_many_as_there_are_dnns(
    run_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcbal.runtime import launch

    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(launch, "visible_gpus", lambda device: ())
    trained = open_trained(EvaluationRequest(run_of()))
    assert num_ranks_to_evaluate(trained) == 2
    monkeypatch.setattr(launch, "visible_gpus", lambda device: ("0", "1", "2", "3"))
    assert num_ranks_to_evaluate(trained) == 4


@pytest.mark.parametrize(
    "argument", ["missing-directory", "--data-args=3 x", "--weights=first x", "--dnns=, x"]
)
def test_mistakes_are_reported_without_loading_mpi_or_tensorflow(argument: str, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom hpcbal.cli import main\ntry:\n    code = main(['evaluate', *sys.argv[1:]])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "heavy = [name for name in ('tensorflow', 'keras', 'mpi4py') if name in sys.modules]\n"
        "sys.exit(f'{heavy} imported' if heavy else code)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *argument.split()],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2
    assert "missing-directory: no such directory" in result.stderr or "error: argument" in result.stderr
