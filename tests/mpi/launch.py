"""Start an MPI program in a session of its own, so that a hung one can be ended whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from support.starting import MPI_ENVIRONMENT

PROJECT_DIR = Path(__file__).resolve().parents[2]
PROGRAM_DIR = Path(__file__).resolve().parent / "programs"

ENVIRONMENT = {**MPI_ENVIRONMENT, "OMP_NUM_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def run_mpi(
    num_ranks: int,
    program: str | Path,
    *args: object,
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `mpirun -n num_ranks python program args...` and wait for its end.

    Args:
        num_ranks: number of ranks, >= 1; more than there are cores is fine.
        program: path of a Python file; a bare name is looked up in tests/mpi/programs.
        args: arguments of the program, turned into text.
        timeout_s: seconds after which the whole session is killed.
        env: variables set on top of this process's own and of `ENVIRONMENT`.

    Returns:
        The finished process, whatever its exit code, with `stdout` and `stderr` as text.

    Raises:
        AssertionError: after `timeout_s`, with the output so far.
        FileNotFoundError: if the program or mpirun does not exist.
    """
    command = [_mpirun(), "--oversubscribe", "-n", str(num_ranks), sys.executable]
    command += [str(_find_program(program)), *map(str, args)]
    # Files, not pipes: a grandchild that outlives mpirun would keep a pipe open and block the reader.
    # A directory of its own: a killed mpirun leaves files that one of the same process id later fails over.
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as session,
    ):
        around = {"PRTE_MCA_prte_tmpdir_base": session, **_environment(env)}
        process = subprocess.Popen(command, stdout=out, stderr=err, env=around, start_new_session=True)
        try:
            process.wait(timeout_s)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill_session(process)
        stdout, stderr = _text(out), _text(err)
    if timed_out:
        raise AssertionError(
            f"{' '.join(command)} did not end within {timeout_s} s and was killed\n"
            f"--- stdout so far\n{stdout}\n--- stderr so far\n{stderr}"
        )
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _find_program(program: str | Path) -> Path:
    path = Path(program)
    if not path.exists() and path.name == str(program):
        path = PROGRAM_DIR / path
    if not path.exists():
        raise FileNotFoundError(f"no MPI program {path}")
    return path


def _mpirun() -> str:
    # The interpreter's own folder first: there lies the mpirun that mpi4py was built for.
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise FileNotFoundError("mpirun is neither beside this Python nor on PATH; install an MPI first")
    return found


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    merged = {**os.environ, **ENVIRONMENT}
    paths = [str(PROJECT_DIR), os.environ.get("PYTHONPATH", "")]
    merged["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    merged.update(env or {})
    return merged


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the session that mpirun leads.

    mpirun gives every rank a process group of its own, so killing mpirun's group would leave the ranks;
    but all of them stay in its session.
    """
    if process.poll() is None:
        process.terminate()  # mpirun passes it on and tidies up
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
    for pid in _pids_of_session(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has just ended by itself
    process.wait()


def _pids_of_session(session: int) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # ended since the folder was listed
        # Fields after the name in brackets (which may hold blanks): state ppid pgrp session ...
        if int(stat.rpartition(")")[2].split()[3]) == session:
            pids.append(int(entry.name))
    return pids


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
