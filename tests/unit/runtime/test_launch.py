"""How many ranks are started, with what command and in what environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ClusterError, ExitCode, OutputError
from hpcbal.kinds import KINDS
from hpcbal.runtime import launch
from hpcbal.runtime.handoff import supervision
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.handoff.start_file import NAME, StartFile
from hpcbal.runtime.handoff.supervision import Requests, supervise
from hpcbal.stop_signals import STOP_SIGNALS

CONFIG = """
data: {dataset: "hpcbal.data:digits"}
dnns: [{name: a, model: "hpcbal.models:softmax", batch_size: 8, stop: {max_epochs: 1},
        optimizer: {name: sgd, learning_rate: 0.1}}]
backend: {name: emulated, rates: {a: {1: 100}}}
"""
TRAINS = "backend={name: tensorflow}"


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts leave, and look for, nothing outside of the test's own folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("run.yaml", "Not a directory (a part of this path is a file"),
        ("run.yaml/below", "Not a directory (a part of this path is a file"),
        ("pipe", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("/proc/below", "No such file or directory"),
        (".", "not empty and not an output directory of hpcbal (it holds pipe, run.yaml)"),
    ],
)
def test_an_output_that_no_run_can_use_is_refused_before_ranks_are_started(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    os.mkfifo(config_file.parent / "pipe")
    monkeypatch.setattr(launch, "start_mpirun", lambda *_: pytest.fail("ranks were started"))
    request = RunRequest(config_file, output=config_file.parent / output)
    with pytest.raises(OutputError) as refused:
        launch.run(request, [])
    assert message in str(refused.value)
    assert refused.value.exit_code == ExitCode.WRONG_INPUT


@pytest.mark.parametrize(
    ("overrides", "num_gpus", "num_cores", "ranks"),
    [
        (["slots.per_node=4"], 0, 2, 6),
        (["slots.per_node=4", "slots.preprocessors_per_node=3"], 8, 64, 8),
        ([], 4, 64, 6),
        ([], 0, 8, 9),  # emulated slots: a core is set aside for the preprocessor
        ([TRAINS], 0, 64, 3),  # one DNN, so one slot with many threads
        ([TRAINS, "schedule.max_slots_per_dnn=3"], 0, 64, 5),
        ([TRAINS, "schedule.max_slots_per_dnn=3"], 0, 2, 4),
        ([TRAINS, "data.access=partitioned"], 0, 4, 6),
    ],
)
def test_one_scheduler_the_preprocessors_and_a_trainer_per_slot(
    config_file: Path, overrides: list[str], num_gpus: int, num_cores: int, ranks: int
):
    assert launch.num_ranks(load_config(config_file, overrides), num_gpus, num_cores) == ranks


JOBS = """
kind: jobs
jobs: [{name: a, app: "m:App", data: {dataset: "m:data"}, mini_batch: 8}]
"""
MACHINES = "machines=[{count: 3, bandwidth: 1MB/s}, {}]"


@pytest.mark.parametrize(
    ("overrides", "num_cores", "ranks", "busy"),
    [
        ([MACHINES], 2, 5, 1),
        ([MACHINES, "slots.per_node=6"], 2, 7, 1),
        ([], 4, 5, 4),
        ([], 1, 3, 2),
        (["slots.per_node=3"], 8, 4, 3),
    ],
)
def test_jobs_that_share_machines_get_a_scheduler_and_a_rank_for_each_machine(
    tmp_path: Path, overrides: list[str], num_cores: int, ranks: int, busy: int
):
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS, encoding="utf-8")
    config = load_config(path, overrides)
    assert launch.num_ranks(config, 0, num_cores) == ranks
    assert KINDS[config.kind].runs.num_busy_ranks(config, ranks) == busy


def test_a_cut_machine_must_be_started_by_the_user(config_file: Path):
    config = load_config(config_file, ["slots.ranks_per_node=3"])
    with pytest.raises(ClusterError, match=r"slots\.ranks_per_node \(3\) .* 'mpirun -n N hpcbal run"):
        launch.num_ranks(config, 0, 2)


def test_the_scheduler_and_emulated_trainers_need_no_core(config_file: Path):
    assert (
        KINDS["ensemble"].runs.num_busy_ranks(load_config(config_file, ["backend={name: tensorflow}"]), 64)
        == 63
    )
    assert KINDS["ensemble"].runs.num_busy_ranks(load_config(config_file), 64) == 1


def test_the_ranks_are_this_very_program():
    command = launch.mpirun_command(["run", "a.yaml"], 6)
    assert Path(command[0]).name == "mpirun"
    assert command[-6:] == ["6", sys.executable, "-m", "hpcbal", "run", "a.yaml"]


def test_no_mpirun_is_reported_with_what_to_do(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="no mpirun on PATH and none beside this Python"):
        launch.mpirun_command(["run", "a.yaml"], 6)


def test_what_the_user_has_set_stays():
    environ = {"OMPI_MCA_osc": "rdma", "HOME": "/home/u"}
    made = launch.mpirun_environment(environ, ranks=6, cores=2)
    assert made["OMPI_MCA_osc"] == "rdma"
    assert made["OMPI_MCA_btl"] == "^ofi"
    assert made["HOME"] == "/home/u"
    assert made["OMPI_MCA_mpi_yield_when_idle"] == "1"
    bare = launch.mpirun_environment({}, ranks=6, cores=8)
    assert "OMPI_MCA_mpi_yield_when_idle" not in bare
    assert os.path.isabs(bare["HOME"]), "Open MPI does not start without it"


def start_of(folder: Path) -> StartFile:
    """The file of a start, as `hpcbal run` makes it."""
    (folder / NAME).touch()
    start = StartFile(folder)
    start.add(starter_pid=os.getpid())
    return start


class Mpirun:
    """Stands for mpirun: ends when it has got a signal of the awaited kind."""

    pid = 0  # no process has it

    def __init__(self, start: StartFile, ends_with: signal.Signals) -> None:
        self.got: list[int] = []
        self._start = start
        self._ends_with = ends_with
        self._polls = 0

    def wait(self, timeout_s: float) -> int:
        self._polls += 1
        assert self._polls < 50, "it was never asked to end"
        if self._ends_with in self.got:
            self._start.add(exit_code=75)
            return 1
        if self._polls == 1:
            os.kill(os.getpid(), signal.SIGINT)
        if self._polls == 3:
            assert not self.got, "a signal in the first second kills the ranks"
            self._start.add(is_ready=True)
        if self._polls == 6 and self._ends_with == signal.SIGINT:
            os.kill(os.getpid(), signal.SIGINT)
        raise subprocess.TimeoutExpired("mpirun", timeout_s)

    def send_signal(self, number: int) -> None:
        self.got.append(number)


def mind_mpirun(mpirun: Any, folder: Path) -> int:
    with Requests() as requests:
        return supervise(mpirun, folder, requests)


@pytest.mark.parametrize("ends_with", [signal.SIGUSR2, signal.SIGINT], ids=lambda number: number.name)
def test_ctrl_c_asks_when_the_ranks_are_ready_and_the_second_kills(tmp_path: Path, capfd, ends_with):
    mpirun = Mpirun(start_of(tmp_path), ends_with)
    before = signal.getsignal(signal.SIGINT)
    assert mind_mpirun(mpirun, tmp_path) == 75
    assert mpirun.got == [signal.SIGUSR2, signal.SIGINT][: 1 + (ends_with == signal.SIGINT)]
    assert "stopping cleanly: writing checkpoints (Ctrl-C again to kill)" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_is_passed_on_though_nobody_reads_stderr_any_more(monkeypatch, tmp_path: Path):
    """Ctrl-C has ended the `tee` of `hpcbal run ... 2>&1 | tee log` too."""
    reader, writer = os.pipe()
    os.close(reader)
    start = start_of(tmp_path)
    mpirun = Mpirun(start, signal.SIGINT)
    start.leave_last_words("rank 2 died")
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stderr", unread)
        assert mind_mpirun(mpirun, tmp_path) == 75
    assert mpirun.got == [signal.SIGUSR2, signal.SIGINT]


def test_a_later_signal_does_not_take_back_that_the_ranks_shall_be_killed():
    with Requests() as requests:
        assert not requests.stop
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert requests.stop
        assert [requests.take_kill(), requests.take_kill()] == [True, False]


def state(**facts: Any) -> str:
    """The shell command by which a rank states facts."""
    return f"echo '{json.dumps(facts)}' >> \"$HPCBAL_LAUNCH_DIR/{NAME}\"; "


DIED = state(is_ready=True, is_watched=True, last_words="rank 2 died")
STOPPED = "the ranks have written checkpoints and stopped"


@pytest.mark.parametrize(
    ("script", "code", "reported"),
    [
        (state(exit_code=3), 3, ""),
        (state(exit_code=3) + "exit 137", 3, ""),
        # An mpirun that is asked to end passes on nothing any more, and ends the ranks soon.
        (state(exit_code=75) + "exit 1", 75, STOPPED),
        (state(abort_code=70) + "exit 70", 70, ""),
        # Nobody has decided: a model has called os._exit(75).
        (state(is_ready=True) + "exit 75", 1, "the ranks have ended, but the run has not"),
        ("exit 1", 1, "the ranks ended while they were starting: mpirun got a signal"),
        (DIED + "exit 75", 1, "rank 2 died"),
        ("exit 143", 75, "a rank ended before it could write a checkpoint"),
        ("exit 137", 1, "a rank was ended by SIGKILL while the run was starting (mpirun reports which)"),
        ("kill -KILL $$", 1, "the ranks have ended too, perhaps before they could write"),
    ],
)
def test_what_the_ranks_state_and_mpirun_returns_is_the_end(
    monkeypatch, capfd, script: str, code: int, reported: str
):
    assert start(monkeypatch, ["sh", "-c", script]) == code
    err = capfd.readouterr().err
    assert reported in err
    assert bool(err) == bool(reported)


def test_what_mpirun_writes_to_stderr_comes_before_the_report_and_without_nul_bytes(monkeypatch, capfd):
    lines = r"import os; os.write(2, b'x' * 300_000 + b'\nprterun noticed\0\n\0'); os._exit(137)"
    assert start(monkeypatch, [sys.executable, "-c", lines]) == 1
    first, second, report = capfd.readouterr().err.splitlines()
    assert (len(first), second) == (300_000, "prterun noticed")
    assert report.startswith("hpcbal: a rank was ended by SIGKILL")


def test_mpirun_is_not_blocked_when_nobody_reads_stderr_any_more(monkeypatch):
    reader, writer = os.pipe()
    saved = os.dup(2)
    os.dup2(writer, 2)
    try:
        os.close(reader)
        os.close(writer)
        script = "head -c 300000 /dev/zero >&2; " + state(exit_code=3)
        assert start(monkeypatch, ["sh", "-c", script]) == 3
    finally:
        os.dup2(saved, 2)
        os.close(saved)


KILLING_RANK = """
import os, pathlib, time
os.kill(os.getppid(), 9)
time.sleep(0.2)
for _ in range(20):
    os.write(2, b"line")
pathlib.Path("written").touch()
"""
STARTER = """
import sys
from hpcbal.runtime import launch
from hpcbal.runtime.handoff.supervision import Requests
launch.mpirun_command = lambda argv, ranks: [sys.executable, "-c", {rank!r}]
with Requests() as requests:
    launch.start_mpirun(["run", "a.yaml"], 6, requests)
"""


def test_mpirun_may_write_to_stderr_after_hpcbal_run_was_killed(tmp_path: Path):
    """A SIGPIPE for each line would make Open MPI abort the ranks."""
    command = [sys.executable, "-c", STARTER.format(rank=KILLING_RANK)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while not (tmp_path / "written").exists():
        assert time.monotonic() < deadline, "a write failed"
        time.sleep(0.05)


def start(monkeypatch, command: list[str]) -> int:
    """Exit code of a start with `command` as its mpirun."""
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: command)
    with Requests() as requests:
        return launch.start_mpirun(["run", "a.yaml"], 6, requests)


def test_a_stop_before_anything_has_started_is_reported(capfd):
    with Requests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        assert launch.start_mpirun(["run", "a.yaml"], 6, requests) == 75
    assert capfd.readouterr().err == (
        "hpcbal: stopped before any rank was started; run the same command again\n"
    )


def test_words_are_reported_before_mpirun_has_ended_the_ranks(monkeypatch, tmp_path: Path):
    """It ends here only once somebody has heard them."""
    monkeypatch.setenv("HEARD", str(tmp_path / "heard"))
    look = 'n=0; while [ ! -e "$HEARD" ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done; '
    wait = look + '[ -e "$HEARD" ]; echo $? > "$HEARD.code"; exit 137'
    heard: list[str] = []

    def report(text: str) -> None:
        heard.append(text)
        (tmp_path / "heard").touch()

    monkeypatch.setattr(supervision, "report", report)
    start(monkeypatch, ["sh", "-c", DIED + wait])
    assert heard == ["rank 2 died"]
    assert (tmp_path / "heard.code").read_text().strip() == "0", "reported only when mpirun had ended"


# An mpirun that is killed while its rank, which it does not take along, holds nothing in the directory yet.
KILLED_MPIRUN = """
import os, signal, subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", {rank!r}], stdout=subprocess.PIPE)
rank.stdout.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
RANK = """
import os, pathlib, signal, time
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
directory, start = pathlib.Path(os.environ["HPCBAL_LAUNCH_DIR"]), StartFile.of_rank()
start.add(is_ready=True)
print("here", flush=True)
watch = StarterWatch(start)
while not (reason := watch.lost()):
    time.sleep(0.05)
pathlib.Path("reason").write_text(reason)
"""


def start_killed_mpirun(monkeypatch, folder: Path, rank: str) -> int:
    """Exit code of a start whose mpirun is killed while `rank` lives."""
    script = KILLED_MPIRUN.format(rank=RANK + rank)
    monkeypatch.chdir(folder)
    return start(monkeypatch, [sys.executable, "-c", script])


@pytest.mark.parametrize(
    ("rank", "code", "reported"),
    [
        ("start.leave_exit_code(0, 75)", 75, "the ranks have written checkpoints and"),
        ("start.leave_exit_code(0, 0)", 0, "the run has ended with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, "the ranks have ended too, perhaps before they could"),
    ],
)
def test_ranks_whose_mpirun_was_killed_are_stopped_and_waited_for(
    monkeypatch, tmp_path: Path, capfd, rank: str, code: int, reported: str
):
    assert start_killed_mpirun(monkeypatch, tmp_path, rank) == code
    assert (tmp_path / "reason").read_text() == "the mpirun that started the ranks is gone"
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("hpcbal: mpirun was ended by SIGKILL; waiting for the ranks to stop")
    assert second.startswith(f"hpcbal: {reported}")


def test_ranks_that_are_ending_are_waited_for_until_they_are_gone(monkeypatch, tmp_path: Path):
    """The environment by which they are found is gone before the process is, with its files and devices."""
    with subprocess.Popen(["sleep", "60"]) as rank:
        num_looks = 0

        def started_with(name: str, value: str) -> set[int]:
            nonlocal num_looks
            num_looks += 1
            if num_looks == 3:
                rank.kill()
            return {rank.pid} if num_looks == 1 else set()

        monkeypatch.setattr(supervision, "started_with", started_with)
        assert supervision.wait_for_orphans(StartFile(tmp_path), tmp_path, Requests(), signal.SIGKILL)
    assert num_looks >= 3


@pytest.mark.parametrize(("interrupts", "is_reported"), [(1, True), (2, False)])
def test_a_death_is_reported_unless_people_have_asked_for_it(monkeypatch, capfd, interrupts, is_reported):
    """A stop that was asked for does not hide that the out-of-memory killer came first."""
    script = """
import os, signal, sys, time
from hpcbal.runtime.handoff.start_file import StartFile
def end(*_):
    sys.exit(137)
signal.signal(signal.SIGUSR2, lambda *_: os.kill(starter, signal.SIGINT) if interrupts == 2 else end())
signal.signal(signal.SIGTERM, end)
start = StartFile.of_rank()
starter = start.read().starter_pid
start.add(is_ready=True, is_watched=True)
os.kill(starter, signal.SIGINT)
while True:
    time.sleep(0.05)
"""
    assert start(monkeypatch, [sys.executable, "-c", f"interrupts = {interrupts}\n{script}"]) == 1
    err = capfd.readouterr().err
    assert ("a rank was ended by SIGKILL" in err) == is_reported
    assert ("killing the ranks" in err) != is_reported


def test_ctrl_c_leaves_ranks_whose_mpirun_was_killed_to_themselves(monkeypatch, tmp_path: Path, capfd):
    rank = """
os.kill(start.read().starter_pid, signal.SIGINT)
while directory.exists():
    time.sleep(0.05)
pathlib.Path("ended").touch()
"""
    assert start_killed_mpirun(monkeypatch, tmp_path, rank) == 1
    assert "some ranks may still be running; they stop after their current step" in capfd.readouterr().err
    deadline = time.monotonic() + 60
    while not (tmp_path / "ended").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_mpirun_keeps_its_files_in_a_directory_of_its_own(monkeypatch, tmp_path: Path):
    """A killed one leaves them; in the usual place the next one with its process id would fail over them."""
    script = 'echo "$PRTE_MCA_prte_tmpdir_base $OMPI_MCA_orte_tmpdir_base $HPCBAL_LAUNCH_DIR" > seen; '
    monkeypatch.chdir(tmp_path)
    seen = []
    for _ in range(2):
        assert start(monkeypatch, ["sh", "-c", script + state(exit_code=3)]) == 3
        new, old, own = (tmp_path / "seen").read_text().split()
        assert new == old == own
        assert not Path(own).exists()
        seen.append(own)
    assert seen[0] != seen[1]


def test_a_stop_before_anything_has_begun_starts_nothing(monkeypatch):
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", "exit 1"])
    with Requests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        assert launch.start_mpirun(["run", "a.yaml"], 6, requests) == 75


EVERY_SIGNAL = """
import os, sys
from hpcbal.cluster.started import Launcher
from hpcbal.runtime import launch
from hpcbal.stop_signals import STOP_SIGNALS

def body(stop, liveness):
    for number in STOP_SIGNALS:
        stop.reason = None
        os.kill(os.getpid(), number)
        print(stop.reason)
    return 0

launch._as_rank(Launcher("mpirun", 0, 1), body)
"""


@pytest.mark.timeout(60)
def test_a_rank_sees_every_signal_though_mpi_has_libraries_that_take_some(tmp_path: Path) -> None:
    """UCX takes HUP when MPI starts."""
    environment = {**os.environ, "PYTHONPATH": str(Path(launch.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", EVERY_SIGNAL],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        cwd=tmp_path,
        env=environment,
    )
    seen = [f"signal {signal.Signals(number).name}" for number in STOP_SIGNALS]
    assert done.stdout.splitlines() == seen, done.stderr
