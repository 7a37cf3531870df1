"""`hpcbal launcher`: the launcher's part of the command line, for job scripts."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal import env
from hpcbal.cli.options import Subparsers, print_text, writing_stdout
from hpcbal.errors import ExitCode, HpcbalError

if TYPE_CHECKING:
    from hpcbal.cluster.systems.job import QueueState


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "launcher",
        help="print how to start the ranks in this Slurm job",
        description="Print the line that starts the ranks in this Slurm job, for job scripts: "
        "$(hpcbal launcher) hpcbal run CONFIG. 'hpcbal plan' prints the same line before the job is queued.",
    )
    parser.add_argument("kind", nargs="?", choices=("srun", "mpirun"), default="srun", help="default: srun")
    parser.add_argument(
        "--ended",
        type=int,
        metavar="STATUS",
        help="for job scripts whose launcher has ended with STATUS: print the exit code of the job, and "
        "behind it 'again' if the job is to be started again, otherwise 'end'",
    )
    parser.add_argument(
        "--starting",
        action="store_true",
        help="for job scripts that begin: end with 75 if the job has come back too often, or was cancelled; "
        "with --system, read what the batch system shows of the job from standard input, and print when the "
        "job ends, in seconds of the Unix epoch, or 0",
    )
    parser.add_argument(
        "--continues",
        metavar="ID",
        help="for job scripts that submit themselves again: note the job whose number the batch system has "
        "printed, which is read from standard input, as the one that continues job ID",
    )
    parser.add_argument(
        "--system", metavar="NAME", help="with --continues and --starting: slurm, pbs, lsf or flux"
    )
    parser.add_argument(
        "--log", metavar="FILE", help="with --continues: the job's log, with the system's marks for numbers"
    )
    parser.add_argument(
        "--most-restarts",
        type=int,
        metavar="N",
        help="with --ended and --starting: how often the job may be started again (default: no limit)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="with them: output directory of the run; a job that 'hpcbal cancel' has stopped ends",
    )
    parser.add_argument(
        "--job",
        metavar="ID",
        help="with --starting: the job, which is noted in DIR if its number is not known",
    )
    parser.add_argument(
        "--mark",
        default="batch.cancel",
        metavar="NAME",
        help="with --ended and --starting: file in DIR by which the job knows that it was cancelled",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Print the line, or how the job has ended."""
    if args.ended is not None:
        return _show_end(args.ended, args.most_restarts, args.output and args.output / args.mark)
    if args.continues is not None:
        return _note_next(args.continues, args.system, args.log, args.output)
    if args.starting:
        return _check_start(
            args.most_restarts, args.output and args.output / args.mark, args.job, args.system
        )
    from hpcbal.cluster.launch_line import ranks_of_slurm_job

    ranks = ranks_of_slurm_job(os.environ)
    with writing_stdout():
        print(" ".join(ranks.srun() if args.kind == "srun" else ranks.mpirun()))
    return 0


def _check_start(most_restarts: int | None, mark: Path | None, job: str | None, system: str | None) -> int:
    from hpcbal.cluster.job_end import reason_not_to_start
    from hpcbal.processes import say

    state = None if system is None else _state_of(system)
    if state is not None and env.read("HPCBAL_CHAIN") is None:  # else the story is older than this job
        _forget_other_job(state.submitted_s)
    reason = reason_not_to_start(_story(), most_restarts, is_cancelled=mark is not None and mark.exists())
    if reason:
        say(reason)
        return int(ExitCode.RUN_AGAIN)
    _note_log()
    if mark is not None and job:
        from hpcbal.cli.submitting.noting import note_started

        try:
            note_started(mark.parent, mark.name, job)
        except HpcbalError as error:
            say(f"hpcbal: warning: {error}")
    if state is not None:
        from hpcbal.cluster.walltime import end_of_job

        end_s = end_of_job(os.environ, time.time()) if state.until_s is None else state.until_s
        print_text(f"{end_s or 0:.0f}")
    return 0


def _state_of(system: str) -> QueueState:
    """Return the state of the job, by what its script has asked."""
    from hpcbal.cluster.systems import SYSTEMS
    from hpcbal.errors import InputError

    if system not in SYSTEMS:
        raise InputError(f"--system: got {system!r}, allowed: {', '.join(SYSTEMS)}")
    return SYSTEMS[system].state_of(sys.stdin.read())


def _forget_other_job(submitted_s: float | None) -> None:
    from hpcbal.cluster.job_end import is_of_another_job

    file = env.read("HPCBAL_END_FILE")
    if file is not None:
        with suppress(OSError):  # there may be none; and where it cannot be removed, its starts count
            if is_of_another_job(Path(file).stat().st_mtime, submitted_s):
                Path(file).unlink()


def _note_next(job: str, system: str | None, log: str | None, output: Path | None) -> int:
    from dataclasses import replace

    from hpcbal.cluster.systems import SYSTEMS
    from hpcbal.errors import InputError
    from hpcbal.telemetry.files.batch_jobs import append_batch_job, read_batch_jobs

    if system is None or system not in SYSTEMS or output is None:
        raise InputError(f"--continues: give --output, and --system, allowed: {', '.join(SYSTEMS)}")
    printed = sys.stdin.read()
    number = SYSTEMS[system].number(printed)
    if not number:
        raise InputError(f"no number of a {SYSTEMS[system].title} job in {printed.strip()!r}")
    before = next((record for record in read_batch_jobs(output) if record.id == job), None)
    if before is None:
        raise InputError(f"{output}: batch.jsonl has no job {job}, which job {number} continues")
    own_log = os.path.abspath(SYSTEMS[system].log_of(log, number)) if log else before.log
    own = replace(before, id=number, continues=job, submitted_s=time.time(), log=own_log)
    append_batch_job(output, replace(own, is_over=False))
    return 0


def _story() -> str:
    """Return what the starts of this job have noted; empty if there is nothing."""
    file = env.read("HPCBAL_END_FILE")
    with suppress(OSError):
        return "" if file is None else Path(file).read_text(encoding="utf-8", errors="replace")
    return ""


def _note_log() -> None:
    """Note how long the job's log is, in front of the start that follows others of this job."""
    from hpcbal.cluster.job_end import LOG
    from hpcbal.runtime.handoff.end_file import note_end

    length = _log_length()
    if length is not None and _story():
        note_end(f"{LOG}{length}")


MOST_LOG_BYTES = 1 << 20
"""Of the end of a job's log, in which its launcher names a node that it has lost."""


def _log_length() -> int | None:
    """Return the length of the job's log, which is this program's stderr, in bytes; None: it is no file."""
    with suppress(OSError):
        found = os.fstat(2)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def _log_since(start: int) -> str:
    """Return what the job's log has from a byte on, `MOST_LOG_BYTES` at most; empty if it cannot be read."""
    length = _log_length()
    if length is None:
        return ""
    with suppress(OSError), open("/proc/self/fd/2", "rb") as file:
        file.seek(max(0 if start > length else start, length - MOST_LOG_BYTES))
        return file.read(MOST_LOG_BYTES).decode(errors="replace")
    return ""


def _show_end(status: int, most_restarts: int | None, mark: Path | None) -> int:
    from hpcbal.cluster.job_end import log_before, what_follows
    from hpcbal.processes import say

    restarts = env.read("SLURM_RESTART_COUNT") or ""
    follows = what_follows(
        _story(),
        status,
        most_restarts,
        num_restarts=int(restarts) if restarts.isdecimal() else 0,
        is_cancelled=mark is not None and mark.exists(),
        log=_log_since(log_before(_story())),
    )
    for sentence in follows.sentences:
        say(sentence)
    print_text(f"{int(follows.code)} {'again' if follows.comes_back else 'end'}")
    return 0
