"""How many ranks are started, with what command and in what environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ClusterError
from hpcbal.runtime import launch

CONFIG = """
data: {dataset: "hpcbal.data:digits"}
dnns: [{name: a, model: "hpcbal.models:softmax", batch_size: 8, stop: {max_epochs: 1},
        optimizer: {name: sgd, learning_rate: 0.1}}]
backend: {name: emulated, rates: {a: {1: 100}}}
"""


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
    ("overrides", "num_gpus", "num_cores", "ranks"),
    [
        (["slots.per_node=4"], 0, 2, 6),
        (["slots.per_node=4", "slots.preprocessors_per_node=3"], 8, 64, 8),
        ([], 4, 64, 6),
        ([], 0, 8, 10),
    ],
)
def test_one_scheduler_the_preprocessors_and_a_trainer_per_slot(
    config_file: Path, overrides: list[str], num_gpus: int, num_cores: int, ranks: int
):
    assert launch.num_ranks(load_config(config_file, overrides), num_gpus, num_cores) == ranks


def test_a_cut_machine_must_be_started_by_the_user(config_file: Path):
    config = load_config(config_file, ["slots.ranks_per_node=3"])
    with pytest.raises(ClusterError, match=r"slots\.ranks_per_node \(3\) .* 'mpirun -n N hpcbal run"):
        launch.num_ranks(config, 0, 2)


def test_the_ranks_are_this_very_program():
    command = launch.mpirun_command(["run", "a.yaml"], 6)
    assert Path(command[0]).name == "mpirun"
    assert command[-6:] == ["6", sys.executable, "-m", "hpcbal", "run", "a.yaml"]


def test_no_mpirun_is_told_with_what_to_do(monkeypatch, tmp_path: Path):
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
    assert "OMPI_MCA_mpi_yield_when_idle" not in launch.mpirun_environment({}, ranks=6, cores=8)


class Mpirun:
    """Stands for mpirun: ends when it has got a signal of the awaited kind."""

    def __init__(self, tmp_path: Path, ends_with: signal.Signals) -> None:
        self.got: list[int] = []
        self.ready = tmp_path / "ready"
        self._ends_with = ends_with
        self._polls = 0

    def wait(self, timeout_s: float) -> int:
        self._polls += 1
        assert self._polls < 50, "it was never asked to end"
        if self._ends_with in self.got:
            return 75
        if self._polls == 1:
            os.kill(os.getpid(), signal.SIGINT)
        if self._polls == 3:
            assert not self.got, "a signal in the first second kills the ranks"
            self.ready.touch()
        if self._polls == 6 and self._ends_with == signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGINT)
        raise subprocess.TimeoutExpired("mpirun", timeout_s)

    def send_signal(self, number: int) -> None:
        self.got.append(number)

    def terminate(self) -> None:
        self.got.append(signal.SIGTERM)


@pytest.mark.parametrize("ends_with", [signal.SIGUSR2, signal.SIGTERM], ids=lambda number: number.name)
def test_ctrl_c_asks_when_the_ranks_are_ready_and_the_second_kills(tmp_path: Path, capfd, ends_with):
    mpirun = Mpirun(tmp_path, ends_with)
    before = signal.getsignal(signal.SIGINT)
    with launch._Stopper() as stopper:
        assert not stopper.asked
        assert stopper.wait(mpirun, mpirun.ready, tmp_path / "exit-code", tmp_path / "words") == 75  # type: ignore[arg-type]
        assert stopper.asked
    assert mpirun.got == [signal.SIGUSR2, signal.SIGTERM][: 1 + (ends_with == signal.SIGTERM)]
    assert "stopping cleanly: writing checkpoints (Ctrl-C again to kill)" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_is_passed_on_though_nobody_reads_stderr_any_more(monkeypatch, tmp_path: Path):
    """Ctrl-C has ended the `tee` of `hpcbal run ... 2>&1 | tee log` too."""
    reader, writer = os.pipe()
    os.close(reader)
    mpirun = Mpirun(tmp_path, signal.SIGTERM)
    (tmp_path / "words").write_text("rank 2 died")
    with os.fdopen(writer, "w") as unread, launch._Stopper() as stopper:
        monkeypatch.setattr(sys, "stderr", unread)
        assert stopper.wait(mpirun, mpirun.ready, tmp_path / "code", tmp_path / "words") == 75  # type: ignore[arg-type]
    assert mpirun.got == [signal.SIGUSR2, signal.SIGTERM]


def test_a_later_signal_does_not_take_back_that_the_ranks_shall_be_killed():
    with launch._Stopper() as stopper:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stopper._kill


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ('echo 3 > "$HPCBAL_LAUNCH_DIR/exit-code"', 3),
        ("exit 70", 70),
        ("exit 137", 1),
        ("exit 0", 1),  # no rank has left word: something went wrong
        ("exit 143", 75),  # TERM came before Python could catch it: nothing is lost
        ("kill -TERM $$", 75),
    ],
)
def test_what_mpirun_returns_becomes_our_exit_code(monkeypatch, script: str, code: int):
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", script])
    with launch._Stopper() as stopper:
        assert launch._start_mpirun(["run", "a.yaml"], 6, stopper) == code


LAST_WORDS = (  # written aside: they are looked for all the time
    'cd "$HPCBAL_LAUNCH_DIR"; touch watched; echo "rank 2 died" > aside; mv aside last-words; '
)


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("exit 137", 1, "a rank was ended by SIGKILL while the run was starting (mpirun tells which)"),
        ("exit 139", 1, "a rank was ended by SIGSEGV while the run was starting (mpirun tells which)"),
        (
            'touch "$HPCBAL_LAUNCH_DIR/watched"; exit 137',  # and no other rank had time to tell
            1,
            "a rank was ended by SIGKILL (mpirun tells which): killed by kill -9 or the out-of-memory killer "
            "(see dmesg), or crashed. Start the same command again to go on from the last checkpoints",
        ),
        (LAST_WORDS + "exit 137", 1, "hpcbal: rank 2 died"),
        (LAST_WORDS + "exit 1", 1, "hpcbal: rank 2 died"),  # the abort of the rank that told came first
        (LAST_WORDS + "exit 143", 1, "hpcbal: rank 2 died"),  # no clean stop, for a script to start it again
        (LAST_WORDS + 'echo 3 > "$HPCBAL_LAUNCH_DIR/exit-code"', 3, "hpcbal: rank 2 died"),
        ("exit 1", 1, ""),  # told by the rank that aborted
        ("exit 213", 1, ""),  # told by mpirun
        ('echo 3 > "$HPCBAL_LAUNCH_DIR/exit-code"; exit 137', 3, ""),
        ('echo 75 > "$HPCBAL_LAUNCH_DIR/exit-code"', 75, ""),  # told by rank 0
        # An mpirun that is asked to end passes on nothing any more, and ends the ranks soon.
        (
            'echo 75 > "$HPCBAL_LAUNCH_DIR/exit-code"; exit 1',
            75,
            "the ranks have written checkpoints and stopped",
        ),
        ('touch "$HPCBAL_LAUNCH_DIR/stopping"; exit 1', 1, "the ranks were to stop, and were ended perhaps"),
        ('cd "$HPCBAL_LAUNCH_DIR"; touch stopping aborted; exit 70', 70, ""),  # told by the rank that aborted
        (
            "kill -KILL $$",
            1,
            "the ranks have ended too, perhaps before they could write; start the same command",
        ),
    ],
)
def test_what_nobody_else_tells_is_told(monkeypatch, capfd, script: str, code: int, told: str):
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", script])
    with launch._Stopper() as stopper:
        assert launch._start_mpirun(["run", "a.yaml"], 6, stopper) == code
    err = capfd.readouterr().err
    assert told in err
    assert bool(err) == bool(told)
    assert err.count("again") + err.count("died") <= 1, "told twice"


def test_words_are_told_before_mpirun_has_ended_the_ranks(monkeypatch, capfd, tmp_path: Path):
    """It ends here only once somebody has told them."""
    monkeypatch.setenv("HEARD", str(tmp_path / "heard"))
    look = 'n=0; while [ ! -e "$HEARD" ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done; '
    wait = look + '[ -e "$HEARD" ]; echo $? > "$HEARD.code"; exit 137'
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", LAST_WORDS + wait])
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text.strip())
        (tmp_path / "heard").touch()

    monkeypatch.setattr(launch, "_say", say)
    with launch._Stopper() as stopper:
        launch._start_mpirun(["run", "a.yaml"], 6, stopper)
    assert told == ["rank 2 died"]
    assert (tmp_path / "heard.code").read_text().strip() == "0", "told only when mpirun had ended"


def test_words_of_ranks_that_people_have_killed_are_not_told(monkeypatch, capfd, tmp_path: Path):
    words = tmp_path / "words"
    words.write_text("rank 2 died")
    stopper = launch._Stopper()
    stopper.has_killed = True
    stopper._tell(words)
    assert capfd.readouterr().err == ""


def test_words_about_ranks_that_lost_their_mpirun_are_not_told(capfd, tmp_path: Path):
    """They tell of each other's ends, which are not the cause."""
    words = tmp_path / "words"
    words.write_text("rank 2 died")
    killed = SimpleNamespace(wait=lambda timeout_s: -signal.SIGKILL)
    stopper = launch._Stopper()
    assert stopper.wait(killed, tmp_path / "ready", tmp_path / "code", words) == -signal.SIGKILL  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""


# An mpirun that is killed while its rank, which it does not take along, holds nothing in the directory yet.
KILLED_MPIRUN = """
import os, signal, subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", {rank!r}], stdout=subprocess.PIPE)
rank.stdout.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
RANK = """
import os, pathlib, signal, time
from hpcbal.runtime.handoff.launch_dir import StarterWatch
print("here", flush=True)
directory, watch = pathlib.Path(os.environ["HPCBAL_LAUNCH_DIR"]), StarterWatch()
while not (reason := watch.lost()):
    time.sleep(0.05)
pathlib.Path("reason").write_text(reason)
"""


def start_killed_mpirun(monkeypatch, folder: Path, rank: str) -> int:
    """Exit code of a start whose mpirun is killed while `rank` lives."""
    script = KILLED_MPIRUN.format(rank=RANK + rank)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: [sys.executable, "-c", script])
    with launch._Stopper() as stopper:
        return launch._start_mpirun(["run", "a.yaml"], 6, stopper)


@pytest.mark.parametrize(
    ("rank", "code", "told"),
    [
        ("(directory / 'exit-code').write_text('75')", 75, "the ranks have written checkpoints and"),
        ("(directory / 'exit-code').write_text('0')", 0, "the run has ended, with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, "the ranks have ended too, perhaps before they could"),
    ],
)
def test_ranks_whose_mpirun_was_killed_are_stopped_and_waited_for(
    monkeypatch, tmp_path: Path, capfd, rank: str, code: int, told: str
):
    assert start_killed_mpirun(monkeypatch, tmp_path, rank) == code
    assert (tmp_path / "reason").read_text() == "the mpirun that started the ranks is gone"
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("hpcbal: mpirun was ended by SIGKILL; waiting for the ranks to stop")
    assert second.startswith(f"hpcbal: {told}")


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

        monkeypatch.setattr(launch, "started_with", started_with)
        assert launch._wait_for_orphans(tmp_path, launch._Stopper(), signal.SIGKILL)
    assert num_looks >= 3


@pytest.mark.parametrize(("interrupts", "is_told"), [(1, True), (2, False)])
def test_a_death_is_told_unless_people_have_asked_for_it(monkeypatch, capfd, interrupts, is_told):
    """A stop that was asked for does not hide that the out-of-memory killer came first."""
    script = """
import os, pathlib, signal, sys, time
def end(*_):
    sys.exit(137)
signal.signal(signal.SIGUSR2, lambda *_: os.kill(starter, signal.SIGINT) if interrupts == 2 else end())
signal.signal(signal.SIGTERM, end)
directory = pathlib.Path(os.environ["HPCBAL_LAUNCH_DIR"])
starter = int((directory / "starter").read_text())
(directory / "watched").touch()
(directory / "ready").touch()
os.kill(starter, signal.SIGINT)
while True:
    time.sleep(0.05)
"""
    command = [sys.executable, "-c", f"interrupts = {interrupts}\n{script}"]
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: command)
    with launch._Stopper() as stopper:
        assert launch._start_mpirun(["run", "a.yaml"], 6, stopper) == 1
    err = capfd.readouterr().err
    assert ("a rank was ended by SIGKILL" in err) == is_told
    assert ("killing the ranks" in err) != is_told


def test_ctrl_c_leaves_ranks_whose_mpirun_was_killed_to_themselves(monkeypatch, tmp_path: Path, capfd):
    rank = """
os.kill(int((directory / "starter").read_text()), signal.SIGINT)
while directory.exists():
    time.sleep(0.05)
pathlib.Path("ended").touch()
"""
    assert start_killed_mpirun(monkeypatch, tmp_path, rank) == 1
    assert "ranks may still run; they stop after their step" in capfd.readouterr().err
    deadline = time.monotonic() + 60
    while not (tmp_path / "ended").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_mpirun_keeps_its_files_in_a_directory_of_its_own(monkeypatch, tmp_path: Path):
    """A killed one leaves them; in the usual place the next one with its process id would fail over them."""
    script = 'echo "$PRTE_MCA_prte_tmpdir_base $OMPI_MCA_orte_tmpdir_base $HPCBAL_LAUNCH_DIR" > seen; exit 70'
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", script])
    seen = []
    for _ in range(2):
        with launch._Stopper() as stopper:
            assert launch._start_mpirun(["run", "a.yaml"], 6, stopper) == 70
        new, old, own = (tmp_path / "seen").read_text().split()
        assert new == old == own
        assert not Path(own).exists()
        seen.append(own)
    assert seen[0] != seen[1]


def test_a_stop_before_anything_has_begun_starts_nothing(monkeypatch):
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", "exit 1"])
    with launch._Stopper() as stopper:
        os.kill(os.getpid(), signal.SIGTERM)
        assert launch._start_mpirun(["run", "a.yaml"], 6, stopper) == 75
