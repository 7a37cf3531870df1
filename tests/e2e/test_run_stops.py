"""Stop and resume: however a run is asked to stop, the same command resumes it to the same end."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from hpcbal.telemetry.resources.processes import living_children

pytestmark = pytest.mark.e2e

SCHEDULER, MASTER, SECOND_TRAINER = 0, 2, 3


DONE = {"a": ("done", 5), "b": ("done", 3), "c": ("done", 4)}
"""State and epochs of each DNN of the lab in the end."""


def epochs_done(lab) -> int:
    return len(lab.events("epoch-done"))


def wait_for_epochs(lab, running, number: int) -> None:
    running.until(lambda: epochs_done(lab) >= number, f"epoch {number}")


def check_stopped(lab, done, reason: str) -> None:
    """Exit code, what the user sees, and what is on disk."""
    assert done.code == 75, done
    assert "Traceback" not in done.err, done
    assert reason in lab.events("suspend-requested")[-1].reason, lab.events()
    assert lab.events()[-1].event == "run-finished"
    assert lab.events()[-1].exit_code == 75
    assert lab.status()["phase"] == "suspended"
    assert not (lab.out / "run.lock").exists()


def test_signals_change_nothing_whoever_gets_them(lab, undisturbed, same_outcome):
    """Each start is stopped by another signal, inside a pass or at its end, the first one under plain mpirun.

    TERM to a trainer; to mpirun, as `kill $(pgrep mpirun)` or `scancel` do; HUP to all processes, as a
    lost connection does.
    """
    lab.configure(slow_down)  # on a busy machine signals arrive late
    stops = [
        ("master", signal.SIGTERM, f" at rank {MASTER}", 5),
        ("mpirun", signal.SIGTERM, "", None),
        ("all", signal.SIGHUP, "", None),
    ]
    for receiver, number, where, num_ranks in stops:
        running = lab.start(num_ranks=num_ranks)
        wait_for_epochs(lab, running, epochs_done(lab) + 1)
        children, ranks = living_children(running.process.pid) or (), running.pids()
        receivers = {
            "master": [ranks[MASTER]],
            "mpirun": children,
            "all": [running.process.pid, *children, *ranks.values()],
        }
        assert num_ranks is not None or len(children) == 1
        for pid in receivers[receiver]:
            os.kill(pid, number)
        check_stopped(lab, running.wait(), f"signal {number.name}{where}")
    offsets = {line.position.offset for line in lab.events("checkpoint-written")}
    assert offsets - {120}, "no stop was inside a pass"
    assert lab.run().code == 0
    same_outcome(lab.outcome(), undisturbed)


def test_ctrl_c_during_start_up_changes_nothing(lab):
    lab.configure(slots={"per_node": 1})
    running = lab.start()
    running.until(
        lambda: catches_signals(running.process.pid), "handler"
    )  # MPI, or even the config, is to come
    running.process.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.code == 75, done
    assert "Traceback" not in done.err, done
    running = lab.start()
    running.until(running.pids, "rank")
    running.process.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.code == 75, done
    if "did not answer for 6 s" in done.err:  # on a busy machine the ranks were still starting
        assert not lab.out.exists() or not lab.events("epoch-done"), done
    else:
        check_stopped(lab, done, "signal SIGINT")
    assert lab.run().code == 0
    assert {row.name: (row.state, row.epochs) for row in lab.results().values()} == DONE


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        (SCHEDULER, "the ranks did not answer for 6 s; killing the ranks"),
        (SECOND_TRAINER, r"a rank was suspended for 6 s; killing|no sign of life for \d+ s of .*rank 3 "),
    ],
)
def test_ranks_that_cannot_stop_are_ended(lab, rank, reason):
    """One is suspended, as if it hung: nobody would ever stop cleanly."""
    lab.configure(slots={"per_node": 2})
    running = lab.start()
    wait_for_epochs(lab, running, 2)
    running.signal_rank(rank, signal.SIGSTOP)
    running.process.send_signal(signal.SIGTERM)
    done = running.wait()
    assert done.code == 75, done
    assert re.search(reason, done.err), done


DEAF = """
import ctypes, signal
from pathlib import Path

from toys import Points


def hang():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    Path("deaf").touch()
    ctypes.PyDLL(None).sleep(600)  # it holds the interpreter's lock


class WhenOpened(Points):
    def __init__(self):
        super().__init__()
        hang()
"""


def test_nothing_is_left_of_ranks_that_hear_no_signal(lab):
    """No thread of such a rank gets to run, and TERM is nothing to it."""
    (lab.folder / "deaf.py").write_text(DEAF, encoding="utf-8")
    lab.configure(data={"dataset": "deaf:WhenOpened"}, slots={"per_node": 1})
    running = lab.start()
    running.until((lab.folder / "deaf").exists, "hang")
    running.process.send_signal(signal.SIGTERM)
    done = running.wait(ranks_s=0.0)
    assert done.code == 75, done
    assert "the ranks did not answer for 6 s; killing the ranks" in done.err, done


def test_a_scheduler_that_is_suspended_ends_the_job_with_70_and_is_named(lab):
    """The other ranks of its node watch it."""
    lab.configure(slots={"per_node": 1})
    running = lab.start("run", "run.yaml", "--set", "stall_timeout_s=8")
    wait_for_epochs(lab, running, 2)
    running.signal_rank(SCHEDULER, signal.SIGSTOP)
    done = running.wait()
    assert done.code == 70, done
    assert done.err.count("no sign of life for ") == 1, done
    assert re.search(r"of rank 0 on host \S+ \(last seen scheduling, suspended\); their stack", done.err), (
        done
    )
    assert "Traceback" not in done.err, done


def test_a_second_request_kills_the_ranks_of_a_shielded_mpirun(lab):
    lab.configure(slow_down, slots={"per_node": 1})
    running = lab.start()
    wait_for_epochs(lab, running, 2)
    for pid in running.pids().values():
        os.kill(pid, signal.SIGSTOP)
    (mpirun,) = living_children(running.process.pid) or ()
    os.kill(mpirun, signal.SIGTERM)
    running.until(lambda: "stopping cleanly" in (lab.folder / ".stderr").read_text(), "answer")
    running.process.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.code != 0, done
    assert "killing the ranks; the last checkpoints stay" in done.err, done


def test_code_of_the_user_that_is_loud_lasting_or_named_as_pythons_own_hides_no_result(lab):
    """A flood on both streams, a thread that never ends, and modules that are called as others are."""
    (lab.folder / "loud.py").write_text(
        "import os\nfrom toys import Points\n\n\nclass Loud(Points):\n"
        "    def read(self, sample_id):\n"
        "        print(10_000 * 'x', sample_id, flush=True)\n"
        "        for _ in range(20): os.write(2, 1000 * b'y' + b'%d\\n' % sample_id)\n"  # as a library in C
        "        return super().read(sample_id)\n",
        encoding="utf-8",
    )
    (lab.folder / "heart.py").write_text(
        "import threading, time, toys\n"
        "def model(input_shape, num_classes):\n"
        "    threading.Thread(target=time.sleep, args=(3600,), name='heart').start()\n"
        "    return toys.toy(input_shape, num_classes)\n",
        encoding="utf-8",
    )
    other = lab.tmp / "of_pythonpath"
    other.mkdir()
    for path in (lab.folder / "json.py", other / "random.py", other / "numpy.py", other / "mine.py"):
        path.write_text("raise ImportError('the wrong one')", encoding="utf-8")
    site = lab.tmp / "with_libraries"
    (site / "tool.egg-info").mkdir(parents=True)
    (site / "queue.py").write_text("raise ImportError('the wrong one')", encoding="utf-8")
    lab.configure(
        dnns=[{"name": "a", "model": "heart:model", "stop": {"max_epochs": 5}}],
        data={"dataset": "loud:Loud"},
        backend={"name": "emulated", "rates": {"a": {1: 900}}},
        slots={"per_node": 1},
    )
    done = lab.run(PYTHONPATH=os.pathsep.join(map(str, (Path(__file__).parents[2], site, other))))
    assert done.code == 0, done.err[-2000:]

    own = [line for line in done.out.splitlines() if not line.startswith("xxx")]
    assert own[0].startswith("[0:00:00] ")
    assert [row for row in own if re.match(r"a +done +5 ", row)]
    assert [row for row in own if row.startswith("files: out/ (")]
    assert re.search(
        r"^hpcbal: rank 1 prints too much: \d+ bytes are left out here; .*out/logs/rank-001.out$",
        done.out,
        re.MULTILINE,
    ), own
    assert len(done.out) < 2_000_000
    assert "x 7\n" in (lab.out / "logs" / "rank-001.out").read_text()

    assert "'heart' still ran 5 s after the end of the run" in done.err, done
    assert "killed what" not in done.err, done

    hidden = re.findall(r"warning: (\S+): hidden by the module of the same name in ", done.err)
    assert hidden == [str(lab.folder / "json.py"), str(other / "numpy.py"), str(other / "random.py")], done


def catches_signals(pid: int) -> bool:
    """Whether a process has handlers of hpcbal, which are the only ones for USR2."""
    (caught,) = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)


def slow_down(config) -> None:
    """The same schedule, four times as slow."""
    for rates in config["backend"]["rates"].values():
        rates.update({count: rate / 4 for count, rate in rates.items()})


def test_ctrl_c_at_the_very_end_spoils_nothing(lab):
    """The last epoch is done: the run ends as if nothing had been, or stops and has nothing left to do."""
    lab.configure(slots={"per_node": 1})
    num_epochs = sum(epochs for _, epochs in DONE.values())
    running = lab.start()
    running.until(lambda: epochs_done(lab) == num_epochs, "last epoch")
    running.process.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.code in (0, 75), done
    assert "Traceback" not in done.err, done
    assert lab.events()[-1].event == "run-finished"
    assert lab.events()[-1].exit_code == done.code
    again = lab.run()
    assert again.code == 0, again
    assert epochs_done(lab) == num_epochs, "something was trained again"
    assert {row.name: (row.state, row.epochs) for row in lab.results().values()} == DONE


def test_term_after_a_rank_has_aborted_ends_with_the_cause(lab):
    """mpirun is already ending the others when the user's TERM comes."""
    lab.configure(slots={"per_node": 2})
    running = lab.start()
    wait_for_epochs(lab, running, 2)
    running.signal_rank(SECOND_TRAINER, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while "rank 3" not in (lab.folder / ".stderr").read_text() and time.monotonic() < deadline:
        if running.process.poll() is not None:
            break
        time.sleep(0.002)
    running.process.send_signal(signal.SIGTERM)
    done = running.wait()
    assert done.code not in (0, 75), done
    assert "Traceback" not in done.err, done
    assert "rank 3" in done.err, done
