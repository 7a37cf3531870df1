"""A signal is remembered and returned once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, NAME, StartFile
from hpcbal.runtime.health.ending import StopFlag
from hpcbal.stop_signals import STOP_SIGNALS


@pytest.fixture
def flag() -> Iterator[StopFlag]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    flag = StopFlag()
    flag.install()
    yield flag
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_the_first_signal_is_reported_once(flag: StopFlag, number: int):
    assert flag.take() is None
    signal.raise_signal(number)
    signal.raise_signal(signal.SIGTERM)
    assert flag.take() == f"signal {signal.Signals(number).name}"
    assert flag.take() is None


def test_the_reason_names_the_signal_that_hpcbal_run_has_passed_on(
    flag: StopFlag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(LAUNCH_DIR, str(tmp_path))
    (tmp_path / NAME).touch()
    StartFile(tmp_path).add(stop_signal="SIGTERM")
    signal.raise_signal(signal.SIGUSR2)
    assert flag.take() == "signal SIGTERM"


def test_a_second_interrupt_ends_the_process():
    program = (
        "import signal\n"
        "from hpcbal.runtime.health.ending import StopFlag\n"
        "StopFlag().install()\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "print('alive', flush=True)\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "print('still alive', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "alive\n")


@pytest.mark.parametrize(
    ("verb", "ends_with"), [("run", "done\n"), ("validate", "hpcbal: interrupted\n")], ids=["run", "validate"]
)
@pytest.mark.parametrize("module", ["hpcbal.safe_text", "hpcbal.errors", "hpcbal.cli"])
def test_an_interrupt_while_a_module_is_imported_leaves_no_traceback(module: str, verb: str, ends_with: str):
    """In a rank it stays pending until the rank can act on it; another verb ends at once."""
    program = (
        "import signal, sys\n"
        "from hpcbal.__main__ import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv = ['hpcbal', {verb!r}, '--help']\n"
        "try: main()\n"
        "except SystemExit: assert signal.SIGINT in signal.sigpending(); print('done', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ends_with


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_after_the_end_does_not_change_the_exit_code(number: int):
    """`Requests` and `StopFlag` are over then; Python gives all handlers back before the process ends."""
    program = (
        "import atexit, signal, sys\n"
        "from hpcbal.__main__ import main\n"
        "from hpcbal.stop_signals import deliver_stop_signals\n"
        "def last():\n"
        f"    signal.raise_signal({int(number)})\n"
        f"    print(signal.getsignal({int(number)}).name)\n"
        "atexit.register(last)\n"
        "sys.argv = ['hpcbal', 'run', 'no.yaml']\n"
        "code = main()\n"
        "deliver_stop_signals()\n"
        f"signal.raise_signal({int(number)})\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "SIG_IGN\n"), done.stderr
