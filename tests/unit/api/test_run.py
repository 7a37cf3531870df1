"""A run from Python, as far as no rank is needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

import hpcbal
from hpcbal.api import child as child_module
from hpcbal.api import run as run_module
from hpcbal.api.child import Child
from hpcbal.config import load_config
from hpcbal.config.source.given import GivenConfig
from hpcbal.errors import OutputError
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.files.atomic_file import to_jsonable
from hpcbal.telemetry.resources.processes import identity_of
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.evaluation import EvaluatedDnn, Evaluation, write_evaluation
from hpcbal.telemetry.views.results import ResultRow, write_results
from hpcbal.telemetry.views.status import end_status, write_status

VALUES: dict[str, Any] = {
    "defaults": {
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "batch_size": 4,
        "stop": {"max_epochs": 2},
    },
    "dnns": [{"name": "a", "model": "hpcbal.models:softmax"}],
    "backend": {"name": "emulated", "rates": {"a": {1: 10}}},
}


class FakeChild:
    """Records command lines."""

    lines: ClassVar[list[list[str]]] = []
    code: int | None = None
    is_slow = False

    def __init__(
        self, words: list[str], directory: Path, *, has_answer: bool = False, keeps: Sequence[int] = ()
    ) -> None:
        self.lines.append(words)
        self.has_answer = has_answer
        if self.is_slow:
            self.keeps = [os.dup(descriptor) for descriptor in keeps]  # as a process inherits them


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that were started, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCBAL_OUTPUT", raising=False)
    monkeypatch.setattr(run_module, "Child", FakeChild)
    monkeypatch.setattr(FakeChild, "lines", [])
    return FakeChild.lines


def test_a_file_is_started_like_on_the_command_line(started: list[list[str]]) -> None:
    Path("x.yaml").write_text(yaml.safe_dump(VALUES), encoding="utf-8")
    changes = {"dnns.a.batch_size": 8}
    run = hpcbal.run("x.yaml", output="out", set=changes, retry_failed=True, log_level="DEBUG")
    assert started == [
        ["run", "x.yaml", "--set=dnns.a.batch_size=8", "--output=out", "--log-level=DEBUG", "--retry-failed"]
    ]
    assert run.directory == Path("out")
    assert repr(run) == "<hpcbal.Run 'out'>"
    assert not Path("out").exists()
    assert hpcbal.run("x.yaml").directory == Path("runs/x")


def test_a_dict_is_kept_in_the_directory_of_the_run(started: list[list[str]]) -> None:
    for _ in range(2):  # it is no foreign file there
        run = hpcbal.run(VALUES, output="out")
        assert started.pop() == ["run", "out/given.yaml", "--output=out"]
    kept = yaml.safe_load((run.directory / "given.yaml").read_text(encoding="utf-8"))
    assert kept == {"name": "ensemble", **VALUES}
    assert load_config(run.directory / "given.yaml") == load_config(GivenConfig(VALUES))
    assert hpcbal.run({**VALUES, "name": "own"}, set={"name": "other"}).directory == Path("runs/other")
    assert yaml.safe_load(Path("runs/other/given.yaml").read_text(encoding="utf-8"))["name"] == "own"


def test_a_dict_without_output_trains_where_its_run_is_looked_for(started: list[list[str]]) -> None:
    directory = hpcbal.run(VALUES).directory
    assert directory == Path("runs/ensemble")
    assert Path(load_config(started[0][1]).output.dir) == directory


def test_the_output_directory_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCBAL_OUTPUT", "elsewhere")
    assert hpcbal.run(VALUES).directory == Path("elsewhere")


def test_wrong_input_is_an_error_before_anything_starts(started: list[list[str]]) -> None:
    with pytest.raises(hpcbal.ConfigError) as caught:
        hpcbal.run({**VALUES, "seed": -1}, output="out")
    assert caught.value.key == "seed"
    with pytest.raises(hpcbal.ConfigError, match="no such file"):
        hpcbal.run("none.yaml")
    with pytest.raises(hpcbal.ConfigError, match="no module 'nowhere'"):
        hpcbal.run(VALUES, set={"dnns.a.model": "nowhere:net"}, output="out")
    with pytest.raises(hpcbal.InputError, match=r"^log_level: "):
        hpcbal.run(VALUES, log_level="LOUD")
    Path("taken").mkdir()
    Path("taken/thesis.tex").touch()
    with pytest.raises(hpcbal.InputError, match="not empty and not an output directory"):
        hpcbal.run(VALUES, output="taken")
    assert started == []
    assert not Path("out").exists()


def test_a_start_shows_no_status_of_an_earlier_one() -> None:
    Path("out").mkdir()
    Path("out/config.yaml").write_text(yaml.safe_dump(VALUES), encoding="utf-8")
    old = new_status("old", 2)
    end_status(old, "suspended", 75)
    write_status("out/status.json", old)
    os.utime("out/status.json", (1.0, 1.0))
    run = hpcbal.run({**VALUES, "name": "new"}, output="out")
    status = run.status()
    assert (status["phase"], status["name"], str(status)) == ("starting", "new", "new: starting")
    os.utime("out/status.json", (time.time() + 1.0,) * 2)
    assert run.status()["name"] == "old"
    assert "suspended" in str(hpcbal.load("out").status())


def test_a_dict_that_would_be_refused_replaces_none() -> None:
    """Ranks of another start read the file, and its owner continues it from a shell."""
    hpcbal.run(VALUES, output="out")
    kept = Path("out/given.yaml").read_bytes()
    other = {**VALUES, "seed": 7}
    with RunLock("out") as lock:  # another process
        owner = json.loads(Path("out/run.lock").read_text(encoding="utf-8"))
        parent = {"pid": os.getppid(), **identity_of(os.getppid())}
        Path("out/run.lock").write_text(json.dumps({**owner, **parent}), encoding="utf-8")
        with pytest.raises(hpcbal.InputError, match="another run is using this directory"):
            hpcbal.run(other, output="out")
        Path("out/run.lock").write_text(json.dumps(owner), encoding="utf-8")
        lock.release()
    Path("out/dnns/a").mkdir(parents=True)
    Path("out/dnns/a/checkpoint-1.h5").touch()  # it has trained
    with pytest.raises(hpcbal.InputError, match="seed"):
        hpcbal.run(other, output="out")
    assert Path("out/given.yaml").read_bytes() == kept
    assert not Path("out/run.lock").exists()


def test_a_dict_that_another_start_reads_is_not_replaced(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeChild, "is_slow", True)
    first = hpcbal.run(VALUES, output="out")
    text = Path("out/given.yaml").read_text(encoding="utf-8")
    other = {**VALUES, "seed": 7}
    with pytest.raises(OutputError, match=r"^out: another process has started a run here that goes on; wait"):
        hpcbal.run(other, output="out")
    assert Path("out/given.yaml").read_text(encoding="utf-8") == text
    for descriptor in first._child.keeps:  # type: ignore[union-attr]
        os.close(descriptor)
    hpcbal.run(other, output="out")
    assert "seed: 7" in Path("out/given.yaml").read_text(encoding="utf-8")
    assert len(started) == 2


def test_a_rank_touches_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 would take over the lock of its own run."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(hpcbal.InputError, match="Open MPI has started this process as a rank"):
        hpcbal.run(VALUES, output="out")
    assert not Path("out").exists()


def test_a_process_starts_one_run_at_a_time_in_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    going = Child.__new__(Child)
    going._verb, going._starter, going._root = "run", os.getpid(), os.path.realpath("out")
    going._process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    monkeypatch.setattr(child_module, "_running", {going})
    with pytest.raises(
        hpcbal.InputError, match=r"this process has started a run here that goes on; wait\(\)"
    ):
        hpcbal.run(VALUES, output="out")
    assert hpcbal.run(VALUES, output="other").directory == Path("other")
    going._process = SimpleNamespace(poll=lambda: 0)  # type: ignore[assignment]
    hpcbal.run(VALUES, output="out")


def test_a_run_is_found_after_the_current_directory_has_changed() -> None:
    run = loaded()
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    assert run.status()["name"] == "a"
    assert repr(run) == "<hpcbal.Run 'out'>"


def test_arguments_of_data_are_plain_or_refused(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loaded()
    monkeypatch.setattr(FakeChild, "wait", lambda self, show: 0, raising=False)
    monkeypatch.setattr(FakeChild, "check", lambda self, code, allowed: None, raising=False)
    run.predictions("m:data", to="p.csv", data_args={"path": Path("x"), "number": np.int64(3)})
    assert started[0][-2] == '--data-args={"path": "x", "number": 3}'
    with pytest.raises(hpcbal.ConfigError, match=r"evaluate: data_args\.a: got a object, allowed"):
        run.evaluate("m:data", data_args={"a": object()})


def test_an_evaluation_is_the_own_one_whatever_others_write_at_the_same_time(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluation(name: str) -> Evaluation:
        return Evaluation(
            run=name,
            data="validation",
            is_test=False,
            num_samples=9,
            measure="accuracy",
            more_is_better=True,
            evaluated_at="2026-11-30T23:06:30.569Z",
            num_ranks=1,
            dnns=(EvaluatedDnn("a", "best", 3, {"loss": 0.5}),),
            ensembles=(),
        )

    def answer(child: FakeChild) -> str:
        assert child.has_answer
        write_evaluation("out/evaluation.json", evaluation("of another"))
        printed = json.dumps(to_jsonable(evaluation("of this")), indent=2)
        return f"a model prints {{\n and ends no line{printed}\nand more\n"

    monkeypatch.setattr(FakeChild, "wait", lambda self, show: 0, raising=False)
    monkeypatch.setattr(FakeChild, "check", lambda self, code, allowed: None, raising=False)
    monkeypatch.setattr(FakeChild, "answer", answer, raising=False)
    found = loaded().evaluate("validation", dnns=["a"])
    assert started[0][2:] == ["--data=validation", "--dnns=a", "--json"]
    assert found["run"] == "of this"
    assert found["dnns"][0]["scores"] == {"loss": 0.5}
    assert "of this on validation: 9 samples" in str(found)
    assert not capsys.readouterr().out
    loaded().evaluate(show=True)
    assert "of this on validation: 9 samples" in capsys.readouterr().out


def test_predictions_are_written_by_the_command_line(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeChild, "wait", lambda self, show: 0, raising=False)
    monkeypatch.setattr(FakeChild, "check", lambda self, code, allowed: None, raising=False)
    run = loaded()
    assert run.predictions("new.npy", to=Path("p.csv"), ensemble="greedy", force=True) == Path("p.csv")
    assert started[0][:2] == ["evaluate", str(Path("out").resolve())]
    assert started[0][2:] == ["--data=new.npy", "--to=p.csv", "--ensemble=greedy", "--force"]
    with pytest.raises(hpcbal.InputError, match="ensemble"):
        run.predictions(to="p.csv", ensemble="best")  # type: ignore[arg-type]
    assert run.predictions(Path("new.npy"), to="p.csv") == Path("p.csv")
    assert started[1][2:] == ["--data=new.npy", "--to=p.csv"]
    arrays: Any = np.zeros((3, 2))
    with pytest.raises(hpcbal.InputError, match=r"^data: got a value of type ndarray, .*save .* numpy\.save"):
        run.predictions(arrays, to="p.csv")
    with pytest.raises(hpcbal.InputError, match=r"^data: got a value of type ndarray, allowed: test, "):
        run.evaluate(arrays)
    assert len(started) == 2


def test_what_a_command_refuses_is_said_with_the_names_of_arguments(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(child: FakeChild, code: int, allowed: Any) -> None:
        said = "hpcbal: --data-args: only with --data; see 'hpcbal evaluate --help'"
        raise hpcbal.RunRefused("hpcbal evaluate", code, "out", said)

    monkeypatch.setattr(FakeChild, "wait", lambda self, show: 2, raising=False)
    monkeypatch.setattr(FakeChild, "check", check, raising=False)
    with pytest.raises(hpcbal.RunRefused) as refused:
        loaded().predictions("new.npy", to="p.csv")
    assert refused.value.output == "hpcbal: data_args: only with data; see 'hpcbal evaluate --help'"


def test_only_a_run_can_be_loaded() -> None:
    with pytest.raises(hpcbal.InputError, match="directory: got a int, allowed: the path of the output dir"):
        hpcbal.load(3)  # type: ignore[arg-type]
    with pytest.raises(hpcbal.InputError, match="no such directory"):
        hpcbal.load("nowhere")
    with pytest.raises(hpcbal.InputError, match=r"x: File name too long; give another path$"):
        hpcbal.load("x" * 300)
    Path("empty").mkdir()
    with pytest.raises(hpcbal.InputError, match=r"no config.yaml: not the output directory of a run"):
        hpcbal.load("empty")


def loaded(status: dict[str, Any] | None = None) -> hpcbal.Run:
    Path("out").mkdir(exist_ok=True)
    write_status("out/status.json", {**new_status("a", 2), **(status or {})})  # type: ignore[typeddict-item]
    return hpcbal.load("out")


def test_results_are_rows_of_plain_values() -> None:
    run = loaded()
    with pytest.raises(hpcbal.InputError, match="not there yet: a run writes it when it ends"):
        run.results()
    row = ResultRow("a", "done", 3, 0.5, 1.5, 3.0, "", {"best_epoch": 2}, {"args.width": "8", "model": "m:f"})
    write_results("out/results.csv", [row])
    assert run.results() == [
        {
            "name": "a",
            "state": "done",
            "epochs": 3,
            "best_val_accuracy": 0.5,
            "wall_time_s": 1.5,
            "slot_seconds": 3.0,
            "cause": "",
            "best_epoch": 2,
            "args.width": 8,
            "model": "m:f",
        }
    ]


def test_a_frame_has_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    run = loaded()
    write_results("out/results.csv", [ResultRow("a", "done", 3, 0.5, 1.5, 3.0)])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hpcbal.InputError, match="needs pandas"):
        run.frame()

    class Pandas:
        DataFrame = staticmethod(lambda rows: ("frame", rows))

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert run.frame() == ("frame", run.results())


def test_waiting_for_the_run_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_LOOK_S", 0.01)
    ended = {"phase": "finished", "outcome": "done", "exit_code": 0}
    assert loaded(ended).wait() == 0
    assert loaded(ended).stop() == 0
    failed = loaded({"phase": "finished", "outcome": "failed-dnns", "exit_code": 3})
    assert failed.wait(check=False) == 3
    with pytest.raises(hpcbal.RunFailed) as caught:
        failed.wait()
    assert (caught.value.code, caught.value.directory) == (3, "out")
    with pytest.raises(TimeoutError):
        loaded().wait(0.0)  # of this process, which lives
    for wrong in ("5", True, float("nan"), [1.0]):
        with pytest.raises(
            hpcbal.InputError, match=r"^timeout_s: got .*, allowed: a number of seconds, or None"
        ):
            loaded(ended).wait(wrong)  # type: ignore[arg-type]
    gone = loaded({"pid": 2**22 + 1})
    with pytest.raises(hpcbal.RunFailed, match="is gone: the run was killed"):
        gone.wait()


def test_stopping_the_run_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hpcbal.InputError, match="runs on elsewhere; stop it there"):
        loaded({"host": "elsewhere"}).stop()
    with pytest.raises(hpcbal.InputError, match="only for a run that was started by this process"):
        loaded().stop(kill=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        facts = {"pid": rank.pid, "host": socket.gethostname(), "process": identity_of(rank.pid)}
        run = loaded(facts)
        monkeypatch.setattr(run, "_wait_for_other", lambda timeout_s, check: 75)
        assert run.stop() == 75
        assert rank.wait(60) == -signal.SIGUSR2
