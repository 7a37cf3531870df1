"""Burners have the same schedule for the same seed, and end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
from contention.burn_cores import Burst, Load, burning, main, schedule

SCRIPT = Path(__file__).parents[3] / "bench" / "contention/burn_cores.py"
GONE_WITHIN_S = 20.0


def bursts(seed: int = 0, core: int = 0, count: int = 50, load: Load | None = None) -> list[Burst]:
    return list(islice(schedule(load or Load(), seed, core), count))


def test_bursts_and_pauses_keep_their_lengths() -> None:
    load = Load(on_s=(1.0, 3.0), off_s=(0.5, 4.0), shares=(0.25, 1.0))
    end_s = 0.0
    for burst in bursts(load=load):
        assert 0.5 <= burst.begin_s - end_s <= 4.0
        assert 1.0 <= burst.end_s - burst.begin_s <= 3.0
        assert burst.share in (0.25, 1.0)
        end_s = burst.end_s


def test_the_schedule_follows_from_seed_and_core() -> None:
    assert bursts(seed=3, core=1) == bursts(seed=3, core=1)
    assert bursts(seed=3, core=1) != bursts(seed=4, core=1)
    assert bursts(seed=3, core=1) != bursts(seed=3, core=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "0", "1"], r"--on: got 0\.0 1\.0, allowed: 0 < least <= most"),
        (["--off", "3", "2"], r"--off: got 3\.0 2\.0"),
        (["--shares", "1.5"], r"got --shares \[1\.5\]"),
        (["--mebibytes", "-1"], r"--mebibytes -1, allowed:"),
        (["--cores", "99999"], r"--cores: got \[99999\], allowed: cores of \["),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        main([*arguments, "--seconds", "0.1"])


def burners_of(parent: int) -> set[int]:
    """Process ids of the burners that `parent` has started, from /proc."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text()
            except OSError:  # it has just ended
                continue
            if int(fields[1]) == parent and "spawn_main" in command:
                found.add(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


def test_burners_run_only_inside_the_block() -> None:
    core = min(os.sched_getaffinity(0))
    with burning([core, core], Load(on_s=(1.0, 1.0), off_s=(0.01, 0.01), mebibytes=1)):
        deadline = time.monotonic() + GONE_WITHIN_S
        while len(started := burners_of(os.getpid())) < 2:  # one that is just being started has no name yet
            assert time.monotonic() < deadline, started
            time.sleep(0.05)
        assert len(started) == 2
    assert not any(is_alive(pid) for pid in started)


def test_a_failed_burner_is_reported() -> None:
    def kill_it() -> None:
        with burning([min(os.sched_getaffinity(0))], Load()):
            (burner,) = multiprocessing.active_children()
            burner.kill()
            burner.join()

    with pytest.raises(SystemExit, match="a burner has failed"):
        kill_it()


def test_burners_end_when_their_starter_is_killed() -> None:
    arguments = ["--cores", str(min(os.sched_getaffinity(0))), "--on", "30", "30", "--off", "0.1", "0.1"]
    starter = subprocess.Popen([sys.executable, str(SCRIPT), *arguments])
    deadline = time.monotonic() + GONE_WITHIN_S
    while not (burners := burners_of(starter.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    wait_until_gone(burners)


def test_the_exit_code_is_the_command_s() -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    with pytest.raises(SystemExit) as caught:
        main(["--cores", str(min(os.sched_getaffinity(0))), "--", *command])
    assert caught.value.code == 7
