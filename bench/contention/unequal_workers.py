"""Start `hpcbal run` on this machine with every trainer pinned to a chosen core.

Trainers that share a core get equal parts of it, so with the cores 0 1 1 the first is twice as fast as the
others, and with 0 1 1 1 1 four times. This needs no root, no container and no change of the configuration:

    python bench/contention/unequal_workers.py --cores 0 1 1 -- run my.yaml --set balance.policy=fitted

`slots.per_node` must be the number of cores given. The scheduler and the preprocessor may run on any core
that this program may use (`--others` names some).
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hpcbal.cluster.launch_line import detect_launcher
from hpcbal.cluster.roles import num_ranks_needed
from hpcbal.runtime.launch import mpirun_command, mpirun_environment

CORES = "HPCBAL_BENCH_CORES"  # cores of all ranks, passed to them: "0,1 0,1 0 1 1"


def cores_of_ranks(
    cores: Sequence[int], others: Sequence[int], num_preprocessors: int = 1
) -> tuple[frozenset[int], ...]:
    """The cores that each rank may use: trainers are the last ranks of a node, one per entry of `cores`."""
    num_others = num_ranks_needed(len(cores), num_preprocessors) - len(cores)
    return (frozenset(others),) * num_others + tuple(frozenset([core]) for core in cores)


def start(
    argv: Sequence[str],
    cores: Sequence[int],
    others: Sequence[int] | None = None,
    environ: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start mpirun with pinned ranks.

    Args:
        argv: the arguments of `hpcbal`.
        cores: core of each trainer.
        others: cores of the other ranks; None: all that this process may use.
        environ: environment to start from; None: this process's.
        log: receives all output; None: this process's stdout and stderr.

    Raises: SystemExit: this process may not use one of the cores.
    """
    usable = sorted(os.sched_getaffinity(0))
    if not {*cores, *(others or ())} <= set(usable):
        raise SystemExit(f"unequal_workers.py: cores {[*cores, *(others or ())]}, allowed: cores of {usable}")
    ranks = cores_of_ranks(cores, others or usable)
    environment = mpirun_environment(environ or os.environ, len(ranks), min(len(usable), len(ranks) - 1))
    environment.pop("HPCBAL_LAUNCHED")  # no parent waits for reports of this run
    environment[CORES] = " ".join(",".join(map(str, sorted(own))) for own in ranks)
    paths = [str(Path(__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    launcher = mpirun_command([], len(ranks))[:-2]  # without `-m hpcbal`
    return subprocess.Popen([*launcher, __file__, *argv], env=environment, stdout=log, stderr=log)


def be_a_rank(argv: Sequence[str], rank: int) -> None:
    """Pin this process before any library looks at its cores, and continue as `hpcbal`."""
    own = os.environ[CORES].split()[rank]
    os.sched_setaffinity(0, [int(core) for core in own.split(",")])
    sys.argv = ["hpcbal", *argv]
    runpy.run_module("hpcbal", run_name="__main__", alter_sys=True)


def main() -> None:
    launcher = detect_launcher(os.environ)
    if CORES in os.environ and launcher is not None and launcher.rank is not None:
        be_a_rank(sys.argv[1:], launcher.rank)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cores", type=int, nargs="+", required=True, metavar="CORE", help="core of each trainer"
    )
    parser.add_argument("--others", type=int, nargs="+", metavar="CORE", help="cores of the other ranks")
    parser.add_argument("argv", nargs="+", metavar="ARGUMENT", help="arguments of hpcbal, after --")
    args = parser.parse_args()
    raise SystemExit(start(args.argv, args.cores, args.others).wait())


if __name__ == "__main__":
    main()
