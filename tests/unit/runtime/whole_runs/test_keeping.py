"""Best weights: beside the last ones, after kills too, and shown in tables and the report."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.checkpoint import background
from hpcbal.checkpoint.best import holds_best, read_best
from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.weights import read_weights
from hpcbal.config.scheduling import specs_of
from hpcbal.control.progress import best
from hpcbal.errors import DataError, InputError, OutputError
from hpcbal.events.members import StopRule
from hpcbal.report.page.page import render_page
from hpcbal.report.reading.run_files import read_run
from hpcbal.runtime.group import saving
from hpcbal.runtime.handoff.finished import report_of_finished
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.resuming.resume import read_earlier
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.read_status import read_status, render_status
from hpcbal.telemetry.views.results import read_results


def dnns(lab: Any, **stop: Any) -> list[dict[str, Any]]:
    """The three, whose accuracy on few samples goes up and down."""
    lab.at_steps([], lambda: None)
    given = lab.dnns(hook="act")
    return [{**dnn, "stop": {**dnn["stop"], **stop}} for dnn in given]


def best_of(lab: Any, name: str) -> TrainingState:
    """The best weights of a DNN, which must be those of the best epoch of its history."""
    state, path, warnings = read_best(lab.out / "dnns" / name, with_arrays=True)
    assert state is not None
    assert not warnings
    assert path.name == "best.h5"
    last = last_of(lab, name)
    assert state.epoch == best(rule_of(lab, name), last.history).epoch
    assert repr(state.history) == repr(last.history[: state.epoch])
    assert any(key.startswith("weights/") for key in state.arrays)
    return state


def rule_of(lab: Any, name: str) -> StopRule:
    rule = next(dnn.stop for dnn in lab.load().dnns if dnn.name == name).rule()
    assert isinstance(rule, StopRule)
    return rule


def last_of(lab: Any, name: str) -> TrainingState:
    state = lab._inner.state(name)
    assert isinstance(state, TrainingState)
    return state


def shown_of(lab: Any) -> dict[str, tuple[int | None, int | None]]:
    """(best, last) epochs that are kept, by DNN; the same in the results, the status and the report."""
    rows = {
        row.name: (row.numbers["saved_best_epoch"], row.numbers["saved_last_epoch"])
        for row in read_results(lab.out / "results.csv")
    }
    status = {}
    for dnn in read_status(lab.out)["dnns"]:
        weights = dnn.get("weights", {"last": None})
        status[dnn["name"]] = (weights.get("best", {}).get("epoch"), weights["last"])
    report = {job.name: (job.kept_best_epoch, job.kept_last_epoch) for job in read_run(lab.out).jobs}
    assert rows == status == report
    return rows


@pytest.mark.parametrize("paradigm", ["global", "independent"])
def test_the_best_weights_are_kept_beside_the_last_ones(lab: Any, capsys: Any, paradigm: str) -> None:
    lab.use(paradigm, dnns=dnns(lab), checkpoint={"interval_s": 60})
    assert lab.run() == 0
    printed = capsys.readouterr().out
    expected = {name: (best_of(lab, name).epoch, epochs) for name, epochs in lab.epochs.items()}
    assert shown_of(lab) == expected
    for name, (epoch, last) in expected.items():
        lines = [line for line in lab.events("best-kept") if line.dnn_id == name]
        assert (lines[-1].epoch, lines[-1].metric) == (epoch, "val_accuracy")
        assert lines[-1].value == last_of(lab, name).history[epoch - 1].metrics["val_accuracy"]
        text = f"best {epoch} (val_accuracy {lines[-1].value:.4f}), last {last}"
        assert text in render_page(read_run(lab.out))
        assert text in render_status(read_status(lab.out))
        assert f"best {epoch} ({lines[-1].value:.4f}), last {last}" in printed
        if epoch == last:
            folder = lab.out / "dnns" / name
            assert (folder / "best.h5").samefile(folder / "checkpoint.h5")


def test_a_best_epoch_is_saved_while_the_group_waits_for_others(lab: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(saving, "BEST_WAITS_S", 0.0)
    lab.use(dnns=dnns(lab), checkpoint={"interval_s": 0})
    assert lab.run() == 0
    for name in lab.epochs:
        kept = best_of(lab, name)
        if kept.epoch == last_of(lab, name).epoch:
            np.testing.assert_equal(
                {key: kept.arrays[key] for key in kept.arrays if key.startswith("weights/")},
                {key: a for key, a in last_of(lab, name).arrays.items() if key.startswith("weights/")},
            )


@pytest.mark.parametrize("interval_s", [0, 60])
@pytest.mark.parametrize("step", [9, 16, 22])
def test_after_a_kill_the_best_weights_are_those_of_the_history(
    lab: Any, capsys: Any, interval_s: int, step: int
) -> None:
    lab.use(dnns=dnns(lab, monitor="val_loss"), checkpoint={"interval_s": interval_s})
    lab.kill_at(step)
    capsys.readouterr()
    assert lab.run() == 0
    assert "(was it copied" not in capsys.readouterr().out
    assert shown_of(lab) == {name: (best_of(lab, name).epoch, epochs) for name, epochs in lab.epochs.items()}


def test_without_best_weights_there_is_no_file_and_no_word_of_them(lab: Any) -> None:
    lab.use(checkpoint={"keep": "last"})
    assert lab.run() == 0
    assert not list(lab.out.glob("dnns/*/best*"))
    assert not lab.events("best-kept")
    assert shown_of(lab) == {name: (None, epochs) for name, epochs in lab.epochs.items()}


def test_best_weights_are_removed_when_a_run_goes_on_without_them(lab: Any) -> None:
    lab.use(dnns=dnns(lab))
    lab.stop_at(14, rank=1)
    assert list(lab.out.glob("dnns/*/best.h5"))
    lab.use(dnns=dnns(lab), checkpoint={"keep": "last"})
    assert lab.run() == 0
    assert not list(lab.out.glob("dnns/*/best*"))
    assert shown_of(lab) == {name: (None, epochs) for name, epochs in lab.epochs.items()}


def test_only_best_weights_stay_once_a_dnn_is_done(lab: Any) -> None:
    lab.use(dnns=dnns(lab), checkpoint={"keep": "best"})
    lab.stop_at(14, rank=1)
    assert lab.run() == 0
    assert shown_of(lab) == {name: (best_of(lab, name).epoch, None) for name in lab.epochs}
    for name, epochs in lab.epochs.items():
        assert (last_of(lab, name).epoch, dict(last_of(lab, name).arrays)) == (epochs, {})
        assert not (lab.out / "dnns" / name / "checkpoint.previous.h5").exists()
        assert read_weights(lab.out / "dnns" / name)[0].which == "best"
    assert lab.run() == 0  # nothing to train, nothing lost
    assert shown_of(lab)["a"][1] is None


def test_a_dnn_without_its_last_weights_cannot_train_longer(lab: Any) -> None:
    lab.use(checkpoint={"keep": "best"})
    assert lab.run() == 0
    lab.use(dnns=[lab.dnn(name, epochs + 1) for name, epochs in lab.epochs.items()])
    with pytest.raises(InputError, match=r"a was done after epoch 4 and only its best weights were kept"):
        lab.run()
    lab.use(checkpoint={"keep": "best"})  # as the message says
    assert lab.run() == 0


def test_a_refused_start_removes_no_best_weights(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.use(dnns=dnns(lab))
    lab.stop_at(14, rank=1)
    kept = sorted(lab.out.glob("dnns/*/best*"))
    assert kept
    lab.use(dnns=dnns(lab), checkpoint={"keep": "last"})
    toys = importlib.import_module("in_process_toys")
    monkeypatch.setattr(toys, "points", lambda num_samples=66, broken=0: toys.Points(num_samples, broken))
    with pytest.raises(DataError, match="trained on other data"):
        lab.run()
    assert sorted(lab.out.glob("dnns/*/best*")) == kept


def test_best_weights_that_are_gone_are_trained_again_if_there_are_no_others(lab: Any, capsys: Any) -> None:
    lab.use(dnns=dnns(lab), checkpoint={"keep": "best"})
    assert lab.run() == 0
    request = RunRequest(lab.out.parent / "run.yaml")
    assert report_of_finished(request, lab.load()) is not None
    for path in (lab.out / "dnns" / "b").glob("best*"):
        path.unlink()
    assert report_of_finished(request, lab.load()) is None
    read_earlier(RunDirectory(lab.out), [], specs_of(lab.load()), retry_failed=False, keep="best")
    assert read_checkpoint(lab.out / "dnns" / "b") == (None, [])  # nothing that a model would not fit
    for path in (lab.out / "dnns" / "c").glob("best*"):
        path.unlink()
    capsys.readouterr()
    assert lab.run() == 0
    (warning,) = warnings_about(lab, "c", capsys.readouterr().out)
    assert (
        "the best weights, the only ones that were kept, are gone (best.h5 is missing); c starts again"
        in warning
    )
    assert best_of(lab, "b").epoch > 0
    assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}


def test_best_weights_that_are_lost_beside_the_last_ones_are_reported_once(lab: Any, capsys: Any) -> None:
    lab.use(dnns=dnns(lab))
    lab.stop_at(22, rank=1)
    assert best_of(lab, "b").epoch < last_of(lab, "b").epoch
    for path in (lab.out / "dnns" / "b").glob("best*"):
        path.unlink()
    capsys.readouterr()
    lab.stop_at(3, rank=1)
    lost = "b/best.h5: the best weights of checkpoint.h5 are lost; the last ones, of epoch "
    assert lost in capsys.readouterr().out
    assert lab.run() == 0
    assert "are lost" not in capsys.readouterr().out


def warnings_about(lab: Any, name: str, shown: str) -> list[str]:
    """The lines of a start that name files of a DNN."""
    return [line for line in shown.splitlines() if f"{lab.out / 'dnns' / name}/" in line]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, flip_a_bit])
def test_best_weights_that_are_lost_are_replaced_by_those_of_the_best_epoch_before(
    lab: Any, capsys: Any, damage: Callable[[Path], None]
) -> None:
    lab.use(dnns=dnns(lab), checkpoint={"keep": "best"})
    assert lab.run() == 0
    name, folder = next((path.parent.name, path.parent) for path in lab.out.glob("dnns/*/best.previous.h5"))
    older, _, _ = read_best(folder, with_arrays=False)
    damage(folder / "best.h5")
    before, _, _ = read_best(folder, with_arrays=False)
    assert older is not None
    assert before is not None
    request = RunRequest(lab.out.parent / "run.yaml")
    assert report_of_finished(request, lab.load()) is None
    capsys.readouterr()
    assert lab.run() == 0
    lost = (
        f"the best weights, of epoch {older.epoch}, are lost; those of the best epoch before, {before.epoch},"
    )
    (warning,) = warnings_about(lab, name, capsys.readouterr().out)
    assert lost in warning
    assert shown_of(lab)[name][0] == before.epoch
    assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}
    assert report_of_finished(request, lab.load()) is not None


def test_damage_of_the_only_weights_is_one_warning_that_says_what_follows(lab: Any, capsys: Any) -> None:
    lab.use(dnns=dnns(lab), checkpoint={"keep": "best"})
    lab.stop_at(22, rank=1)
    for path in (lab.out / "dnns" / "b").glob("best*"):
        flip_a_bit(path)
    capsys.readouterr()
    assert lab.run() == 0
    (warning,) = warnings_about(lab, "b", capsys.readouterr().out)
    assert "are gone (" in warning
    assert "best.h5: its content is damaged: " in warning
    assert warning.endswith("; b starts again")


def test_after_a_failed_write_of_the_last_best_weights_training_goes_on_from_the_checkpoint(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, at the last epoch of a DNN that keeps only its best weights."""
    lab.use(dnns=dnns(lab), checkpoint={"keep": "best", "interval_s": 0})
    write_best = background.write_best

    def full(directory: Path, state: TrainingState, *, is_ahead: bool) -> None:
        if state.epoch == lab.epochs[state.name]:
            raise OutputError(f"{directory}/best.h5: cannot write: No space left on device")
        write_best(directory, state, is_ahead=is_ahead)

    with monkeypatch.context() as patch:
        patch.setattr(background, "write_best", full)
        with pytest.raises(OutputError, match="No space left"):
            lab.run()
    for folder in (lab.out / "dnns").iterdir():
        state, _ = read_checkpoint(folder)
        assert state is not None
        assert state.arrays or holds_best(folder, state, best(rule_of(lab, folder.name), state.history).epoch)
    assert lab.run() == 0
    assert shown_of(lab) == {name: (best_of(lab, name).epoch, None) for name in lab.epochs}


def test_a_run_whose_weights_are_gone_at_its_end_is_not_called_finished(
    lab: Any, hooks: Any, capsys: Any
) -> None:
    lab.use(dnns=[lab.dnn("a", 4, hook="act"), lab.dnn("b", 2)])

    def remove(step: int) -> None:
        if any(line.dnn_id == "b" for line in lab.events("dnn-done")):
            for path in (lab.out / "dnns" / "b").glob("*.h5"):
                path.unlink()

    hooks["act"] = remove
    assert lab.run() == 1
    printed = capsys.readouterr().out
    assert "finished after" not in printed
    assert "stopped after" in printed
    (end,) = lab.events("run-finished")
    assert end.outcome == "suspended"
