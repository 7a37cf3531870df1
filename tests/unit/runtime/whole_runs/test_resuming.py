"""A start finds damaged checkpoints, other data, failed DNNs, more epochs than before."""

from __future__ import annotations

import importlib
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcbal.errors import ExitCode, HpcbalError, InputError
from hpcbal.runtime.health import silence


@pytest.fixture
def stopped(lab: Any) -> Any:
    """A start that was stopped when the DNNs had trained for a while."""
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(14, rank=1)
    return lab


def damaged_checkpoint(lab: Any, name: str) -> None:
    path = lab.out / "dnns" / name / "checkpoint.h5"
    path.write_bytes(path.read_bytes()[:1000])


def test_a_truncated_checkpoint_is_noticed_and_the_previous_one_used(stopped: Any, capsys: Any) -> None:
    name = next(d.name for d in (stopped.out / "dnns").iterdir() if (d / "checkpoint.previous.h5").exists())
    damaged_checkpoint(stopped, name)
    capsys.readouterr()
    assert stopped.run() == 0
    shown = capsys.readouterr().out
    assert f"dnns/{name}/checkpoint.h5: " in shown
    assert f"dnns/{name}/checkpoint.previous.h5 (epoch " in shown
    assert len(stopped.events("checkpoint-damaged")) == 1
    assert stopped.states() == {dnn: ("done", epochs) for dnn, epochs in stopped.epochs.items()}
    epochs = [record[0] for record in stopped.outcome()[name][0]]
    assert epochs == list(range(1, stopped.epochs[name] + 1))


def test_a_sample_that_was_named_as_broken_may_be_repaired(lab: Any, tmp_path: Path, capsys: Any) -> None:
    from PIL import Image

    for number in range(24):
        path = tmp_path / "photos" / f"c{number % 3}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), (number * 9, 80 * (number % 3), 5)).save(path)
    broken, other = tmp_path / "photos" / "c1" / "10.png", tmp_path / "photos" / "c2" / "11.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:40])
    data = {"dataset": "hpcbal.data:image_folder", "args": {"path": str(tmp_path / "photos")}}
    dnns = [{**lab.dnn("a", 3), "model": "hpcbal.models:softmax", "args": {}}]
    steps = [{"decode": {"mode": "rgb"}}, {"center_crop": {"height": 2, "width": 2}}]
    sections = {"dnns": dnns, "preprocessing": steps}
    lab.use(data={**data, "max_bad_fraction": 0.1}, **sections)
    assert lab.run() == 0
    broken.write_bytes(whole)
    dnns[0]["stop"] = {"max_epochs": 4}
    lab.use(data=data, **sections)
    assert lab.run() == 0, "the limit may be lower now"
    assert "have changed, and are read again" in capsys.readouterr().out
    dnns[0]["stop"] = {"max_epochs": 5}
    lab.use(data=data, **sections)
    assert lab.run() == 0, "and so it is in later starts"
    other.write_bytes(whole)
    with pytest.raises(HpcbalError, match=r"was trained on other data .* named as broken may have changed"):
        lab.run()


def test_both_checkpoints_damaged_or_gone_start_that_dnn_anew(stopped: Any, capsys: Any) -> None:
    damaged, gone = sorted(d.name for d in (stopped.out / "dnns").iterdir())[:2]
    for name in ("checkpoint.h5", "checkpoint.previous.h5"):
        (stopped.out / "dnns" / damaged / name).write_bytes(b"not HDF5")
        (stopped.out / "dnns" / gone / name).unlink(missing_ok=True)
    capsys.readouterr()
    assert stopped.run() == 0
    assert "there is no whole checkpoint, so training starts from the beginning" in capsys.readouterr().out
    assert stopped.states() == {dnn: ("done", epochs) for dnn, epochs in stopped.epochs.items()}


def test_a_copy_whose_files_are_of_different_moments_is_noticed(lab: Any, capsys: Any) -> None:
    """As one that is made file by file while the run trains."""
    sections = {"dnns": lab.dnns(hook="act"), "checkpoint": {"interval_s": 0}}
    lab.use(**sections)
    lab.stop_at(22, rank=1)
    early = {path.relative_to(lab.out): path.read_bytes() for path in lab.out.rglob("*") if path.is_file()}
    assert lab.run() == 0
    late = {path.relative_to(lab.out): path.read_bytes() for path in lab.out.rglob("*") if path.is_file()}

    def copy(output: str, ledger: Mapping[Path, bytes], rest: Mapping[Path, bytes]) -> str:
        lab.use(output=output, **sections)
        for path, content in {**rest, Path("ledger.jsonl"): ledger[Path("ledger.jsonl")]}.items():
            (lab.out / path).parent.mkdir(parents=True, exist_ok=True)
            (lab.out / path).write_bytes(content)
        capsys.readouterr()
        assert lab.run() == 0
        assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}
        return str(capsys.readouterr().out)

    assert "checkpoint.h5: the checkpoint has epochs that ledger.jsonl lacks, " in copy(
        "newer", ledger=early, rest=late
    )
    older = copy("older", ledger=late, rest=early)
    assert re.search(
        r"a/checkpoint.h5: the checkpoint is of epoch \d, but ledger.jsonl has a later one, of epoch 4", older
    )
    assert "copied" not in copy("whole", ledger=early, rest=early)


def test_checkpoints_of_other_data_are_refused(stopped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    toys = importlib.import_module("in_process_toys")
    monkeypatch.setattr(toys, "points", lambda num_samples=66, broken=0: toys.Points(num_samples, broken))
    with pytest.raises(HpcbalError, match="trained on other data or preprocessing") as refused:
        stopped.run()
    assert refused.value.exit_code == 2


def test_the_same_data_may_move_between_starts(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the local scratch of a batch job, in a variable or written out."""

    def use(path: Path | str, num_points: int = 60, **args: Any) -> None:
        if isinstance(path, Path):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{num_points}")
        data = {"dataset": "in_process_toys:in_file", "args": {"path": str(path), **args}}
        lab.use(data=data, dnns=lab.dnns(hook="act"))

    use(tmp_path / "first" / "points")
    monkeypatch.setenv("SCRATCH", str(tmp_path / "first"))
    use("$SCRATCH/points")
    lab.stop_at(5, rank=1)
    (tmp_path / "first").rename(tmp_path / "second")
    with pytest.raises(HpcbalError, match="cannot be opened"):
        lab.run()
    monkeypatch.setenv("SCRATCH", str(tmp_path / "second"))
    lab.stop_at(5, rank=1)
    use(tmp_path / "third" / "points", num_points=66)
    with pytest.raises(HpcbalError, match="trained on other data"):
        lab.run()
    use(tmp_path / "third" / "points")
    assert lab.run() == 0


def test_a_pair_of_arrays_is_trained_and_known_again_by_its_content(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.use(data={"dataset": "in_process_toys:arrays"}, dnns=lab.dnns(hook="act"))
    lab.stop_at(5, rank=1)
    toys = importlib.import_module("in_process_toys")
    samples, labels = toys.arrays()
    with monkeypatch.context() as changed:
        changed.setattr(toys, "arrays", lambda: (samples + 0.1, labels))
        with pytest.raises(HpcbalError, match="trained on other data"):
            lab.run()
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}


def test_a_path_may_not_change_if_nothing_identifies_the_data(lab: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("60")
        args = {"path": str(tmp_path / name), "is_identified": False}
        lab.use(data={"dataset": "in_process_toys:in_file", "args": args}, dnns=lab.dnns(hook="act"))
        if name == "a":
            lab.stop_at(5, rank=1)
    with pytest.raises(
        HpcbalError, match=r"data\.args\.path: changed, but the dataset has no attribute 'fing"
    ):
        lab.run()


def test_a_failed_dnn_stays_failed_until_it_is_to_be_retried(lab: Any, hooks: Any) -> None:
    trouble = [lab.dnn("a", 4), lab.dnn("b", 2, hook="act"), lab.dnn("c", 3)]
    lab.use(dnns=trouble)

    def fail(step: int) -> None:
        if step == 5:
            raise RuntimeError("the layers do not fit")

    hooks["act"] = fail
    assert lab.run() == 3
    assert lab.states()["b"][0] == "failed"
    (failed,) = lab.events("dnn-failed")
    first = failed.detail.splitlines()[0]
    assert re.fullmatch(r"DNN b: model .*:toy: a step failed: .*: RuntimeError: the layers do not fit", first)
    hooks["act"] = lambda step: None
    assert lab.run() == 3, "without --retry-failed it is left as it is"
    assert lab.run(retry_failed=True) == 0
    assert [line.dnn_id for line in lab.events("dnn-retried")] == ["b"]
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}


def test_dnns_are_added_to_a_finished_run_and_a_failed_one_is_taken_out(lab: Any, hooks: Any) -> None:
    def fail(step: int) -> None:
        if step == 5:
            raise RuntimeError("the layers do not fit")

    hooks["act"] = fail
    a, b, c = lab.dnn("a", 4), lab.dnn("b", 2, hook="act"), lab.dnn("c", 3)
    lab.use(dnns=[a, b])
    assert lab.run() == 3
    before = lab.outcome()["a"]
    lab.use(dnns=[c, a])
    assert lab.run() == 0
    assert lab.states() == {"c": ("done", 3), "a": ("done", 4)}
    lab.assert_same({"a": lab.outcome()["a"]}, {"a": before})
    hooks["act"] = lambda step: None
    lab.use(dnns=[a, b, c])
    assert lab.run() == 3, "it is back, and still failed"
    assert lab.run(retry_failed=True) == 0
    assert lab.states() == {"a": ("done", 4), "b": ("done", 2), "c": ("done", 3)}


@pytest.mark.parametrize("paradigm", ["global", "independent"])
def test_dnns_of_a_stopped_run_are_taken_out_and_come_back(lab: Any, paradigm: str) -> None:
    """The one that goes is in training; another takes its place, and all go on where they stopped."""
    lab.use(paradigm, output="calm")
    assert lab.run() == 0
    calm = lab.outcome()
    dnns = lab.dnns(hook="act")
    lab.use(paradigm, dnns=dnns[:2])
    lab.stop_at(9, rank=1)
    lab.use(paradigm, dnns=dnns[1:])
    assert lab.run() == 0
    assert {name for name, (state, _) in lab.states().items() if state == "done"} == {"b", "c"}
    lab.use(paradigm, dnns=dnns)
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}
    if paradigm == "independent":  # elsewhere the passes, and so the order of samples, are others
        lab.assert_same(lab.outcome(), calm)


def test_all_samples_broken_for_a_while(lab: Any) -> None:
    lab.use(data={"dataset": "in_process_toys:points", "args": {"broken": 60}})
    assert lab.run() == 2
    assert not lab.events("epoch-done")
    assert not lab.events("dnn-done")
    importlib.import_module("in_process_toys").MENDED.set()
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}


def test_as_many_broken_samples_as_are_allowed_are_only_recorded(lab: Any, capsys: Any) -> None:
    data = {"dataset": "in_process_toys:points", "args": {"broken": 3}, "max_bad_fraction": 0.05}
    lab.use(data=data)
    assert lab.run() == 0
    assert sorted(line.sample_id for line in lab.events("bad-sample")) == [0, 1, 2]
    assert capsys.readouterr().out.count("warning: broken sample skipped: point 2: ") == 1


def test_a_run_without_validation_data_stops_and_resumes(lab: Any, capsys: Any) -> None:
    data = {"dataset": "in_process_toys:points", "validation_fraction": 0}
    lab.use(output="calm", data=data)
    assert lab.run() == 0
    calm = lab.outcome()
    lab.use(dnns=lab.dnns(hook="act"), data=data)
    lab.stop_at(14, rank=1)
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}
    assert "best train acc " in capsys.readouterr().out
    for name, (history, arrays) in lab.outcome().items():
        assert [record[2]["accuracy"] for record in history] == pytest.approx(
            [record[2]["accuracy"] for record in calm[name][0]]
        )
        assert all(math.isnan(record[2]["val_loss"]) for record in history)
        for key, array in arrays.items():
            assert array == pytest.approx(calm[name][1][key], rel=1e-12, abs=1e-12)


def test_the_walltime_stops_cleanly_and_the_next_start_resumes(lab: Any) -> None:
    lab.use(output="calm")
    assert lab.run() == 0
    calm = lab.outcome()
    lab.use(walltime=3600)
    assert lab.run(started_s=time.time() - 3600) == 75
    (requested,) = lab.events("suspend-requested")
    assert "walltime" in requested.reason
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), calm)


def test_weights_for_more_slots_than_there_are_are_refused_at_each_start(lab: Any) -> None:
    lab.use(balance={"policy": "fixed", "shares": [4, 3, 2]})
    for _ in range(2):
        with pytest.raises(InputError, match=r"balance\.shares: got 3 weights, allowed: at most 2"):
            lab.run()
    assert not lab.events("run-started")
    lab.use(balance={"policy": "fixed", "shares": [4, 3]})
    assert lab.run() == 0


def test_stops_while_groups_are_formed_change_nothing(lab: Any) -> None:
    """Models are being built, and no rank has trained yet, when a rank of each kind gets a signal."""
    lab.use(output="calm")
    assert lab.run() == 0
    calm = lab.outcome()
    lab.use(dnns=lab.dnns(hook="act"))
    for rank in (2, 3, 1, 0):
        lab.stop_at(0, rank)
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), calm)
    assert not (lab.out / "run.lock").exists()


def test_a_step_that_hangs_does_not_hold_a_stop(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "LEAST_STOP_S", 2.0)
    monkeypatch.setattr(silence, "MOST_STOP_S", 2.0)
    lab.use(stall_timeout_s=4.0, dnns=lab.dnns(hook="act"))
    with pytest.raises(HpcbalError, match=r"the run is to stop, but .* \(last seen training ") as ended:
        lab.hang_at(4)
    assert ended.value.exit_code == ExitCode.RUN_AGAIN
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}
