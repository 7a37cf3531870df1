"""A rank is killed: the job ends soon, says which rank it was, and the same command resumes the run."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from pathlib import Path

import pytest

from hpcbal.runtime.handoff.start_file import NAME
from hpcbal.runtime.handoff.supervision import ORPHANS_S

pytestmark = pytest.mark.e2e

LIMIT_S = 2 * ORPHANS_S
"""How long an end may take: longer than ranks whose mpirun was killed are waited for."""


# Rank, its role, and the ranks that a plain mpirun starts; None: `hpcbal run` starts them.
KILLS = ((3, "trainer", 5), (0, "scheduler", None))


def test_a_killed_rank_or_a_full_disk_ends_the_start_and_the_next_one_resumes(lab, undisturbed, same_outcome):
    """A trainer, then the scheduler, with checkpoints inside passes. Elsewhere, a preprocessor is killed."""
    lab.configure(slowly, checkpoint={"interval_s": 0.03})

    def inside_a_pass() -> list[object]:
        return [line for line in lab.events("checkpoint-written") if 0 < line.position.offset < 120]

    for rank, role, num_ranks in KILLS:
        known = len(lab.events("epoch-done"))
        running = lab.start(num_ranks=num_ranks)
        running.until(lambda known=known: len(lab.events("epoch-done")) >= known + 2, "epoch")
        running.until(inside_a_pass, "checkpoint inside a pass")
        pid = running.pids()[rank]
        running.signal_rank(rank, signal.SIGKILL)
        done = running.wait(LIMIT_S)
        print(done)
        assert f"rank {rank} ({role}, pid {pid}) on host " in done.err, done
        if num_ranks is None:
            assert done.code == 1, done
            assert done.err.count("died without an error message: killed by a signal") == 1, done
            assert "Traceback" not in done.err, done
        else:
            assert done.code != 0, done
        assert lab.events()[-1].event != "run-finished"
    check_full_disk(lab)
    done = lab.run()
    assert done.code == 0, done
    assert len(lab.events("run-started")) == len(KILLS) + 2
    same_outcome(lab.outcome(), undisturbed)
    assert [row.state for row in lab.results().values()] == ["done"] * 3


def check_full_disk(lab) -> None:
    """No file may grow beyond a limit: what is asked for cannot be written, as on a full disk."""
    known = len(lab.events("epoch-done"))
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) > known, "epoch")
    for pid in running.pids().values():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
    done = running.wait()
    assert done.code == 2, done
    assert "Traceback" not in done.err, done
    assert "hpcbal: " in done.err
    assert "File too large" in done.err, done


def slowly(config, pace_s: float = 0.004) -> None:
    """Let passes take long enough for a signal to come inside one, also on a busy machine."""
    for dnn in config["dnns"]:
        dnn["args"] = {"pace_s": pace_s}


def test_a_rank_killed_while_the_run_starts_is_reported(lab):
    """Most likely before MPI is there; on some machine or other once the ranks watch each other."""
    lab.configure(slots={"per_node": 1})
    running = lab.start()
    running.until(lambda: 2 in running.pids(), "rank 2")
    running.signal_rank(2, signal.SIGKILL)
    done = running.wait(LIMIT_S)
    assert done.code == 1, done
    assert reports_a_death_once(done.err), done
    assert "Traceback" not in done.err, done
    done = lab.run("run", "run.yaml", "--set", "defaults.stop.max_epochs=1")
    assert done.code == 0, done


def reports_a_death_once(err: str) -> bool:
    """A death is reported either by a rank that saw it or by `hpcbal run`."""
    reported = re.findall(r"hpcbal: (?:rank \d .* died without an error|a rank was ended by SIGKILL)", err)
    return len(reported) == 1 and err.count("un the same command again") == 1


def test_deaths_that_no_rank_can_report_are_reported(lab, undisturbed, same_outcome):
    """All ranks are killed, in the next starts mpirun and what started it, and the same command resumes."""
    lab.configure(lambda config: slowly(config, 0.012))  # three starts must not train all that there is
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 2, "epoch")
    for pid in running.pids().values():  # unless mpirun is quicker, which kills the others too
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    done = running.wait(LIMIT_S)
    print(done)
    assert done.code == 1, done
    assert reports_a_death_once(done.err), done
    check_killed_mpirun(lab)
    check_killed_starter(lab)
    done = lab.run()
    assert done.code == 0, done
    assert list(lab.tmp.glob("hpcbal-*")) == []
    same_outcome(lab.outcome(killed=True), undisturbed)


def check_killed_mpirun(lab) -> None:
    """Its ranks may stop cleanly before Open MPI aborts them; either way they are gone."""
    known = len(lab.events("epoch-done"))
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) > known, "epoch")
    (mpirun,) = children(running.process.pid)
    os.kill(mpirun, signal.SIGKILL)
    done = running.wait(LIMIT_S)
    print(done)
    assert "mpirun was ended by SIGKILL; waiting for the ranks to stop" in done.err, done
    ends = {
        75: "the ranks have written checkpoints and stopped; run the same command again",
        1: "perhaps before they could write checkpoints; run the same command again",
    }
    assert done.code in ends, f"the run was over before the stop, or failed otherwise:\n{done}"
    assert ends[done.code] in done.err, done
    assert "Traceback" not in done.err, done
    assert list(lab.tmp.iterdir()) == []
    if done.code == 75:
        assert lab.events()[-1].exit_code == 75


def check_killed_starter(lab) -> None:
    """Its ranks stop cleanly."""
    known = len(lab.events("epoch-done"))
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) > known, "epoch")
    (used,) = lab.tmp.glob("hpcbal-*")
    for pid in (running.process.pid, *running.pids().values()):
        assert str(used / NAME) in open_files(pid), "another start would take the directory for a left-over"
    running.process.kill()
    running.wait(ranks_s=LIMIT_S)
    assert list(lab.tmp.glob("hpcbal-*")) == [used]
    assert "is gone" in lab.events("suspend-requested")[-1].reason
    assert lab.events()[-1].exit_code == 75


def open_files(pid: int) -> set[str]:
    """Paths of the files that a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in between
            found.add(os.readlink(link))
    return found


def children(pid: int) -> list[int]:
    """Processes that `pid` has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
