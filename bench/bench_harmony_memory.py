"""Samples on disk: eight jobs on machines that hold a third of what they need ([PS] Sec. 4.3.3, Fig. 4.19).

    python bench/bench_harmony_memory.py --json out.json

Real ranks, messages, apps and files; computing and disks are paced (workloads/harmony_memory.py). All jobs
share two machines, without and with the limit, with alpha by hill climbing and with fixed ones.

- `alpha_over_best_fixed`: time with alpha by hill climbing over that with the best fixed alpha ([PS]
  Fig. 4.19: 44.3 s over 52.9 s). A fixed alpha that does not fit fails, and does not count.
- `over_roomy`: time with alpha by hill climbing over that of the same jobs with all the memory they need.
- `needs_over_memory`: the most that jobs held with all the memory they need, over the limit.
- `most_over_memory`: the most that jobs held with alpha by hill climbing, over the limit (at most 1).
- `resident_over_roomy`: growth of the process by the kernel's account, with the limit over without.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.provenance import provenance
from support.starting import train
from workloads.harmony_memory import JOBS, MEMORY_BYTES, file_of

from hpcbal.telemetry.ledger import JobDoneLine, JobSpilledLine, MachinesUsedLine, RunStartedLine

PAPER = 44.3 / 52.9
"""Fig. 4.19: hill climbing over the best fixed alpha, 0.3."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run.

    Attributes:
        seconds: until its last job was done.
        done: jobs that were.
        memory_bytes: the most that jobs held on a machine at a time.
        resident_bytes: the most by which a machine's process grew.
        alphas: share of its blocks that each job had on disk at last.
        stop_s: seconds for which jobs waited for the disk, mean of jobs.
    """

    seconds: float
    done: int
    memory_bytes: int
    resident_bytes: int
    alphas: dict[str, float]
    stop_s: float

    @property
    def is_whole(self) -> bool:
        return self.done == len(JOBS)


def run(memory_bytes: int | None, alpha: float | str) -> Outcome:
    """Run all jobs for real."""
    with tempfile.TemporaryDirectory(prefix="bench_harmony_memory_") as scratch:
        folder = Path(scratch)
        ledger = train(file_of(str(folder / "out"), memory_bytes, alpha), folder, codes=(0, 3))
    began_s = next(entry.unix_s for entry in ledger if isinstance(entry.line, RunStartedLine))
    ends = [entry for entry in ledger if isinstance(entry.line, JobDoneLine)]
    used = next(entry.line for entry in ledger if isinstance(entry.line, MachinesUsedLine))
    spilled = [entry.line for entry in ledger if isinstance(entry.line, JobSpilledLine)]
    return Outcome(
        max(entry.unix_s for entry in ends) - began_s,
        len(ends),
        max(used.memory_bytes),
        max(used.resident_bytes),
        {line.job: line.alpha for line in spilled},
        sum(line.stop_s for line in spilled) / len(JOBS),
    )


def figures(roomy: Outcome, climbed: Outcome, fixed: dict[float, Outcome]) -> dict[str, float]:
    """All figures, by key."""
    whole = {alpha: outcome.seconds for alpha, outcome in fixed.items() if outcome.is_whole}
    if not whole or not climbed.is_whole or not roomy.is_whole:
        raise SystemExit("a run has not ended all its jobs")
    best = min(whole, key=lambda alpha: whole[alpha])
    return {
        "alpha_over_best_fixed": climbed.seconds / whole[best],
        "best_fixed_alpha": best,
        "over_roomy": climbed.seconds / roomy.seconds,
        "best_fixed_over_roomy": whole[best] / roomy.seconds,
        "needs_over_memory": roomy.memory_bytes / MEMORY_BYTES,
        "most_over_memory": climbed.memory_bytes / MEMORY_BYTES,
        "resident_over_roomy": climbed.resident_bytes / roomy.resident_bytes,
        "roomy_s": roomy.seconds,
        "climbed_s": climbed.seconds,
        **{f"fixed_{alpha:g}_s": seconds for alpha, seconds in whole.items()},
    }


def line_of(name: str, outcome: Outcome) -> str:
    alphas = outcome.alphas.values()
    shares = f"{min(alphas):.2f} to {max(alphas):.2f}" if alphas else "0"
    failed = "" if outcome.is_whole else f"  {len(JOBS) - outcome.done} jobs did not fit"
    return (
        f"{name:12s} {outcome.seconds:6.1f} s  held {outcome.memory_bytes / 1e6:5.2f} MB  grew "
        f"{outcome.resident_bytes / 1e6:6.1f} MB  waited {outcome.stop_s:5.1f} s  alpha {shares}{failed}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.8, 1.0], metavar="SHARE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    roomy = run(None, 0.0)
    print(line_of("all fits", roomy), flush=True)
    climbed = run(MEMORY_BYTES, "auto")
    print(line_of("auto", climbed), flush=True)
    fixed = {}
    for alpha in args.alphas:
        fixed[alpha] = run(MEMORY_BYTES, alpha)
        print(line_of(f"alpha {alpha:g}", fixed[alpha]), flush=True)
    found = figures(roomy, climbed, fixed)
    print(
        f"\nhill climbing over the best fixed alpha: {found['alpha_over_best_fixed']:.3f} (paper {PAPER:.3f})"
    )
    print(f"hill climbing over all memory: {found['over_roomy']:.3f}")
    print(f"needs over memory: {found['needs_over_memory']:.2f}")
    print(f"held over memory: {found['most_over_memory']:.2f}")
    if args.json:
        args.json.write_text(json.dumps({"load_before": load_before} | found | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
