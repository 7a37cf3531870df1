"""A fit in a separate process gives the same model, fails loudly, and does not outlive its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor
from hpcbal.speed_models import FitJob
from hpcbal.speed_models.fit_process import COMMAND, FitFailedError, FitProcess, fit_environment

SETTLE_S = 240.0


def a_job() -> FitJob:
    rng = np.random.default_rng(0)
    parts = rng.uniform(0.2, 1.0, (3, 2, 60))
    return FitJob("arima", SpeedHistory(*parts), None)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SETTLE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def result_of(fitting: FitProcess) -> SpeedPredictor:
    assert fitting._thread is not None
    fitting._thread.join(SETTLE_S)
    model = fitting.take()
    assert model is not None
    return model


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_the_model_equals_that_of_a_fit_in_this_process() -> None:
    job, fitting = a_job(), FitProcess()
    fitting.start(job)
    assert fitting.is_busy
    model = result_of(fitting)
    np.testing.assert_allclose(model.predict(job.recording), job().predict(job.recording), rtol=1e-4)
    assert not fitting.is_busy
    assert fitting.take() is None
    fitting.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; sys.exit('no such table')", "ended with code 1: no such table"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL: no output"),
        ("import sys; sys.stdin.buffer.read(); print('hello')", "cannot be read"),
        ("pass", "cannot be read"),
    ],
)
def test_a_process_that_fails_is_reported_once(text: str, message: str) -> None:
    fitting = FitProcess(script(text))
    fitting.start(a_job())
    with pytest.raises(FitFailedError, match=message):
        result_of(fitting)
    assert fitting.take() is None
    fitting.close()


def test_a_process_that_hangs_is_killed() -> None:
    fitting = FitProcess(script("import time; time.sleep(1000)"), limit_s=0.2)
    fitting.start(a_job())
    with pytest.raises(FitFailedError, match="not done after 0 s"):
        result_of(fitting)
    fitting.close()


def test_closing_kills_the_running_fit(tmp_path: Path) -> None:
    fitting = FitProcess(script(f"open({str(tmp_path / 'up')!r}, 'w'); import time; time.sleep(1000)"))
    fitting.start(a_job())
    wait_for((tmp_path / "up").exists)
    process = fitting._process
    assert process is not None
    fitting.close()
    assert process.returncode == -signal.SIGKILL


OWNER = """\
import numpy as np, pathlib, sys, time
from hpcbal.policies.batching.speed import SpeedHistory
from hpcbal.speed_models import FitJob
from hpcbal.speed_models.fit_process import FitProcess
import hpcbal.speed_models.fit_process as module
fitting = FitProcess((*module.COMMAND,))
fitting.start(FitJob("narx", SpeedHistory(*np.ones((3, 64, 4000))), None))
while fitting._process is None:
    time.sleep(0.01)
print(fitting._process.pid, flush=True)
time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_owner_leaves_no_process_behind() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner:
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
    wait_for(lambda: not is_alive(pid))


def test_the_process_is_not_a_rank_and_sees_no_accelerator() -> None:
    environ = {
        "PATH": "p",
        "PMIX_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "SLURM_PROCID": "1",
        "PYTHONPATH": "q",
    }
    found = fit_environment(environ)
    assert {name for name in found if name.startswith(("PMIX", "OMPI", "SLURM"))} == set()
    assert (found["PATH"], found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == ("p", "-1", "1")
    assert found["PYTHONPATH"].endswith(f"{os.pathsep}q")


def test_the_process_has_the_lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        "import os, sys, hpcbal.speed_models.__main__ as fit\n"
        "fit.unpack_job = lambda data: sys.exit(f'nice {os.nice(0)}')\n"
        "fit.main(int(sys.argv[1]))"
    )
    fitting = FitProcess(script(message))
    fitting.start(a_job())
    with pytest.raises(FitFailedError, match="nice 19"):
        result_of(fitting)
    fitting.close()
    assert COMMAND[1:] == ("-m", "hpcbal.speed_models")
