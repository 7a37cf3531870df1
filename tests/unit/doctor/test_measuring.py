"""The doctor's questions to this machine, and to one with a fault: a broken library, no memory, no files."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcbal.doctor import checks, local
from hpcbal.doctor.child import ask, ask_python, asking, facts_in


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise ImportError('libmpi.so.40: cannot open')", "ImportError: libmpi.so.40: cannot open"),
        ("import os; os.abort()", "it died of signal SIGABRT"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('no facts')", "exit code 0"),
    ],
)
def test_a_child_that_breaks_says_why(code: str, fault: str) -> None:
    answer = ask_python(code, limit_s=30)
    assert (answer.facts, answer.fault) == (None, fault)


def test_a_child_imports_in_the_order_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of PYTHONPATH does not hide a library that is installed."""
    (tmp_path / "yaml.py").write_text("raise OSError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # as __main__ leaves it
    answer = ask_python("import json, yaml; print(json.dumps({'file': yaml.__file__}))", limit_s=30)
    assert answer.facts is not None, answer.fault
    assert not answer.facts["file"].startswith(str(tmp_path))


def test_a_child_that_hangs_is_left_with_all_that_it_has_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = "import pathlib, subprocess, sys, time\n"
    code += (
        "pathlib.Path(sys.argv[1]).write_text(str(subprocess.Popen(['sleep', '60']).pid))\ntime.sleep(60)\n"
    )
    answer = ask_python(code, str(pid), limit_s=3)
    assert answer.fault == "no answer within 3 s"
    path = Path(f"/proc/{pid.read_text()}/stat")
    end_s = time.monotonic() + 30
    while path.exists() and path.read_text().split()[2] != "Z":
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_does_not_wait_for_children(tmp_path: Path, number: signal.Signals) -> None:
    """They get TERM, so that an mpirun ends its ranks, and those that ignore it are killed."""
    code = "import os, pathlib, signal, sys, time\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[2]).touch())\n"
    code += "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\nwhile True: time.sleep(600)\n"
    pid, asked = tmp_path / "pid", tmp_path / "asked"

    answers = []

    def interrupted() -> None:
        with asking(1) as pool:
            answers.append(pool.submit(ask_python, code, str(pid), str(asked), limit_s=600))
            while not pid.exists() or not pid.read_text():
                time.sleep(0.02)
            os.kill(os.getpid(), number)
            answers[0].result()

    with pytest.raises(SystemExit if number is signal.SIGTERM else KeyboardInterrupt):
        interrupted()
    assert answers[0].result().fault == "interrupted"
    assert asked.exists()
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_facts_are_the_last_object_that_was_printed() -> None:
    assert facts_in('{"a": 1}\nnoise {\n{"b": 2}\n{broken\n') == {"b": 2}
    assert facts_in(json.dumps({"a": [1, 2]}, indent=2)) == {"a": [1, 2]}
    assert facts_in("none") is None
    assert ask(["hpcbal-no-such-program"], 5).fault.startswith("hpcbal-no-such-program cannot be started")


@pytest.mark.parametrize("under", ["", "nets"])
def test_an_output_that_is_a_file_is_an_error(tmp_path: Path, under: str) -> None:
    (tmp_path / "runs").touch()
    (found,) = [
        each
        for each in local.of_node(tmp_path / "runs" / under, imports=False, shm=str(tmp_path))
        if each.check == "output"
    ]
    assert found.level == "error"
    assert "not a directory (runs)" in found.text


def test_the_files_of_this_machine_pass_and_nothing_is_left(tmp_path: Path) -> None:
    found = local.of_node(tmp_path / "runs" / "new", imports=False, shm=str(tmp_path))
    assert {finding.check: finding.level for finding in found if finding.check == "output"} == {
        "output": "ok"
    }
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_an_error() -> None:
    (found,) = checks.output("x", ask_python(local._FILES, "/proc/self/none/runs", limit_s=30))
    assert found.level == "error"
    assert "choose another directory" in found.do


def test_missing_shared_memory_is_an_error(tmp_path: Path) -> None:
    found = local.of_node(tmp_path, imports=False, shm=str(tmp_path / "none"))
    assert [(f.check, f.level) for f in found] == [("shared memory", "error"), ("output", "ok")]


def test_a_tiny_shared_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = os.statvfs(tmp_path)
    tiny = os.statvfs_result((4096, 4096, 16, 2, 1, space.f_files, 900, 900, 0, 255))
    monkeypatch.setattr(local.os, "statvfs", lambda path: tiny)
    found = checks.shared_memory(str(tmp_path), local.shared_space(str(tmp_path)))
    assert (found.level, found.text) == ("error", f"{tmp_path}: 0 MiB of 0 MiB free")


def test_a_library_that_breaks_on_import_takes_nothing_else_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')\n")
    (tmp_path / "torch.py").write_text("import os\nos.kill(os.getpid(), 4)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    broken, died = local.frameworks()
    assert (broken.check, broken.level, died.check, died.level) == ("TensorFlow", "error", "PyTorch", "error")
    assert "libcuda.so.1: cannot open shared object file" in broken.text
    assert "SIGILL" in died.text


def test_without_a_framework_only_emulated_runs_are_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    (found,) = local.frameworks()
    assert found.level == "warning"


def test_the_first_mpirun_on_path_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert local.version_of_mpirun() == "mpirun (Open MPI) 4.1.4\n"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert local.version_of_mpirun() is None


def test_a_container_is_known_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/hpcbal.sif")
    assert local.container_name() == "Apptainer container hpcbal.sif"


HANGING = """\
import os, sys, time
from hpcbal.doctor.child import Watch
watch = Watch(3.0, lambda doing: print(f"hung: {doing}", flush=True))
watch.stage("the first")
if sys.argv[1] == "well":
    watch.close()
    sys.exit(0)
watch.stage("the start of MPI")
import ctypes
ctypes.PyDLL(None).sleep(60)  # holds the interpreter, as MPI may
"""


def test_a_process_that_holds_the_interpreter_is_ended_with_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING, "x"], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (1, "hung: the start of MPI\n")


def test_a_process_that_ends_in_time_is_not_watched_on() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING, "well"], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
