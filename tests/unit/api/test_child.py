"""A command as a child process: its end, its output, and stops."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbal.api import child as child_module
from hpcbal.api.child import Child
from hpcbal.errors import ExitCode, InputError, RunFailed, RunRefused

PROGRAM = """\
import os, signal, sys, time
from hpcbal.stop_signals import keep_stop_signals
from hpcbal.runtime.handoff.supervision import Requests
{before}
with Requests() as requests:
    print("ready", flush=True)
    while not requests.stop:
        time.sleep(0.01)
        requests.note_end_of_starter()
    print("stopping after", requests.first_signal, flush=True)
    for _ in range({patience}):
        if requests.take_kill():
            print("killing", flush=True)
            sys.exit(9)
        time.sleep(0.01)
sys.exit(75)
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Child]:
    """Starts a child that does as `hpcbal run` does, without ranks."""

    def start(before: str = "", patience: int = 0) -> Child:
        package = tmp_path / "fake" / "hpcbal"
        program = PROGRAM.format(before=before, patience=patience)
        package.parent.mkdir(exist_ok=True)
        real = subprocess.Popen

        def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
            return real([sys.executable, "-c", program], **options)  # type: ignore[call-overload,no-any-return]

        monkeypatch.setattr(child_module.subprocess, "Popen", popen)
        started = Child(["run", "x.yaml"], tmp_path)
        monkeypatch.setattr(child_module.subprocess, "Popen", real)
        return started

    return start


def until_ready(child: Child) -> None:
    until_s = time.monotonic() + 60.0
    while "ready" not in child.last_lines():
        assert child.code is None, child.last_lines()
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_an_answer_is_what_the_command_has_printed_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, program = (
        subprocess.Popen,
        "import os, sys; os.write(1, b'\\xff{}\\n'); print('so far', file=sys.stderr)",
    )

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", program], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(child_module.subprocess, "Popen", popen)
    child = Child(["evaluate", "."], tmp_path, has_answer=True)
    assert child.wait(60.0, show=True) == 0
    assert (child.answer(), child.last_lines(), capsys.readouterr().out) == (
        "\ufffd{}\n",
        "so far",
        "so far\n",
    )


def test_a_refused_command_is_an_error_with_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = Child(["validate", str(tmp_path / "none.yaml")], tmp_path)
    code = child.wait(show=True)
    shown = capsys.readouterr().out
    assert f"{tmp_path}/none.yaml: no such file" in shown
    assert (code, child.code) == (2, 2)
    with pytest.raises(RunRefused) as caught:
        child.check(code)
    assert isinstance(caught.value, InputError)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.code, error.directory, error.exit_code) == (2, str(tmp_path), ExitCode.WRONG_INPUT)
    assert error.output == shown.strip()
    assert str(error) == f"{tmp_path}: 'hpcbal validate' ended with code 2:\n{error.output}"
    child.check(2, allowed=(0, 2))


def test_other_codes_are_failures() -> None:
    error = RunFailed("hpcbal run", 3, "runs/x", "")
    assert not isinstance(error, InputError)
    assert (error.exit_code, str(error)) == (ExitCode.FAILED_DNNS, "runs/x: 'hpcbal run' ended with code 3")
    assert RunFailed("hpcbal run", 137, "runs/x", "").exit_code is ExitCode.INTERNAL_ERROR


def test_a_rank_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(InputError, match=r"PMI has started this process as a rank; .*__main__"):
        Child(["run", "x.yaml"], tmp_path)


def test_a_stop_that_was_asked_for_is_no_error(fake: Callable[..., Child]) -> None:
    child = fake()
    until_ready(child)
    child.stop()
    child.stop()  # asks once, and kills nothing
    assert child.wait(show=False) == 75
    child.check(75)
    assert "stopping after SIGUSR2" in child.last_lines()
    with pytest.raises(RunFailed):
        child.check(1)


def test_a_stop_before_the_child_can_handle_it_is_kept(fake: Callable[..., Child]) -> None:
    child = fake(before="time.sleep(0.5)")
    child.stop()
    assert child.wait(show=False) == 75


def test_a_stop_of_somebody_else_is_an_error(fake: Callable[..., Child]) -> None:
    child = fake()
    until_ready(child)
    os.kill(child.pid, signal.SIGTERM)
    code = child.wait(show=False)
    with pytest.raises(RunFailed, match="ended with code 75"):
        child.check(code)


def test_kill_is_a_second_signal(fake: Callable[..., Child]) -> None:
    child = fake(patience=6000)
    until_ready(child)
    child.stop(kill=True)
    assert child.wait(show=False) == 9


def test_waiting_has_a_limit(fake: Callable[..., Child]) -> None:
    child = fake()
    with pytest.raises(TimeoutError, match="'hpcbal run' still runs"):
        child.wait(0.0, show=False)
    child.stop()
    child.wait(show=False)


def interrupting(monkeypatch: pytest.MonkeyPatch, child: Child, times: int) -> None:
    """Ctrl-C comes while `wait` sleeps, so many times."""
    words, sleep = ["ready", "stopping after"][:times], time.sleep

    def interrupted_sleep(seconds: float) -> None:
        if words and words[0] in child.last_lines():
            words.pop(0)
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(child_module.time, "sleep", interrupted_sleep)


def test_ctrl_c_while_waiting_stops_cleanly_and_is_raised_after_the_end(
    fake: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = fake()
    interrupting(monkeypatch, child, 1)
    with pytest.raises(KeyboardInterrupt):
        child.wait(show=False)
    assert child.code == 75


def test_ctrl_c_again_kills(fake: Callable[..., Child], monkeypatch: pytest.MonkeyPatch) -> None:
    child = fake(patience=6000)
    interrupting(monkeypatch, child, 2)
    with pytest.raises(KeyboardInterrupt):
        child.wait(show=False)
    assert child.code == 9


def test_the_end_of_the_script_stops_what_runs(
    fake: Callable[..., Child], capfd: pytest.CaptureFixture[str]
) -> None:
    child = fake()
    until_ready(child)
    child_module._end_all()
    assert child.code == 75
    assert "the script ends before 'hpcbal run', which now stops cleanly" in capfd.readouterr().err
    child_module._end_all()  # nothing runs any more
    assert capfd.readouterr().err == ""


def test_a_forked_copy_stops_nothing_when_it_ends(fake: Callable[..., Child]) -> None:
    child = fake()
    until_ready(child)
    copy = os.fork()
    if copy == 0:
        with contextlib.suppress(BaseException):
            child_module._end_all()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 7
    assert child.code is None
    child.stop()
    assert child.wait(show=False) == 75


def test_a_forked_copy_cannot_take_a_run_for_one_that_has_ended(
    fake: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the process that has started it is told of its end; Python's answer to others is code 0."""
    child = fake()
    with monkeypatch.context() as forked:
        forked.setattr(child, "_starter", os.getpid() + 1)
        with pytest.raises(InputError, match=r"another process has started 'hpcbal run'.*use hpcbal\.load"):
            child.wait(show=False)
    child.stop()
    child.wait(show=False)


def test_all_are_asked_to_stop_before_one_is_waited_for(
    fake: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [fake(), fake()]
    asked, stop, wait = list[str](), Child.stop, Child.wait

    def stopped(child: Child) -> None:
        asked.append("stop")
        stop(child)

    def waited(child: Child, *, show: bool) -> int:
        asked.append("wait")
        return wait(child, show=show)

    monkeypatch.setattr(Child, "stop", stopped)
    monkeypatch.setattr(Child, "wait", waited)
    for child in children:
        until_ready(child)
    child_module._end_all()
    assert asked == ["stop", "stop", "wait", "wait"]
    assert [child.code for child in children] == [75, 75]


def test_a_thread_that_waits_does_not_keep_an_ended_script_alive(tmp_path: Path) -> None:
    """Python waits for its threads before it calls what is registered for its end."""
    program = f"""
import subprocess, sys, threading
from pathlib import Path
from hpcbal.api import child as module
real = subprocess.Popen
module.subprocess.Popen = lambda command, **options: real([sys.executable, "-c", {PROGRAM!r}.format(
    before="", patience=0)], **options)
child = module.Child(["run", "x.yaml"], Path("out"))
module.subprocess.Popen = real
threading.Thread(target=lambda: print("code", child.wait(show=False))).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "code 75\n"), done.stderr
    assert "the script ends before 'hpcbal run'" in done.stderr
