"""Compare `hpcbal.samplers.BalancedBatchSampler` with the `BatchRebalanceSampler` of transformers.

    pip install torch transformers
    python bench/bench_sampler.py --json out.json

Lengths are lognormal (mu 5, sigma 1, cut to 16..1,024). A rank's cost of a step is its number of samples
times the longest; the slowest rank counts, in 200 steps. Both samplers share out the same global batches. The
peer's own cost has a part that grows with the square of the length: it is tried with and without that part,
and the better one counts. The limit is the best that any assignment of the samples can reach, by search.

Figures, all ours over the peer's: `of_hf_equal_max`, slowest rank on 2 x 32 to 16 x 128 equal ranks (at most
1.0); `of_hf_unlike`, on ranks of speed 1, 1, 2, 4, which ours was told (at most 0.6); `decision_of_hf_max`,
median time to decide a step on equal ranks (at most 1.0); `ddp_of_hf`, wall time of a real DDP run (gloo) of
two ranks on two cores, one of which has other work too, with speeds that ours measures itself, everything
included (at most 0.8). Its limit assumes that both ranks work all the time at the speeds that they showed.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from support.figures import parser_of, write_figures
from support.starting import environment

from hpcbal.samplers import BalancedBatchSampler

EQUAL = ((2, 32), (4, 32), (4, 64), (8, 64), (16, 128))
"""Ranks, and samples per rank."""
SPEEDS = (1.0, 1.0, 2.0, 4.0)
UNLIKE = ((4, 32), (4, 64), (4, 128))
NUM_STEPS = 200
CLOSE = 1e-9
BUSY = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"


def least_time(sizes: Sequence[int], speeds: Sequence[float]) -> float:
    """The least time of the slowest rank for the samples of a step; no assignment is faster.

    Some assignment with that time gives each rank a run of the samples in descending order: let the ranks of
    any assignment stand in the order of their longest samples, and give them runs of the same lengths. The
    longest of each run is then no longer than before. So all orders of the ranks are tried, and in each the
    ranks take what they finish by a deadline.
    """
    descending = sorted(sizes, reverse=True)

    def fits(order: Sequence[float], deadline: float) -> bool:
        start = 0
        for speed in order:
            start += int(deadline * speed / descending[start] * (1 + 1e-12))
            if start >= len(descending):
                return True
        return False

    least = len(descending) * descending[0] / max(speeds)
    for order in set(itertools.permutations(speeds)) if len(set(speeds)) > 1 else [tuple(speeds)]:
        if not fits(order, least * (1 - CLOSE)):
            continue
        low, high = 0.0, least
        while high - low > CLOSE * high:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(order, middle) else (middle, high)
        least = high
    return least


def slowest(shares: Sequence[Sequence[int]], lengths: np.ndarray, speeds: Sequence[float]) -> float:
    """Time of the slowest rank, one unit of padded length taking a rank of speed 1 one unit of time."""
    return max(
        len(share) * int(lengths[list(share)].max()) / speed
        for share, speed in zip(shares, speeds, strict=True)
    )


def compare(num_ranks: int, per_rank: int, speeds: Sequence[float]) -> dict[str, float]:
    """The sums of the slowest rank's times, and medians of the seconds of a decision."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler
    from workloads.ddp_tokens import lognormal_lengths

    class Padded(BatchRebalanceSampler):
        QUADRATIC_COST_COEF = 0.0

    size = num_ranks * per_rank
    lengths = lognormal_lengths(NUM_STEPS * size)
    own = [
        BalancedBatchSampler(
            lengths, size, num_replicas=num_ranks, rank=rank, speeds=None if len(set(speeds)) == 1 else speeds
        )
        for rank in range(num_ranks)
    ]
    peers = [kind(lengths.tolist(), size, num_ranks, 1) for kind in (BatchRebalanceSampler, Padded)]
    passes = [iter(sampler) for sampler in own]
    ours, limit, theirs = 0.0, 0.0, [0.0, 0.0]
    our_s: list[float] = []
    their_s: list[list[float]] = [[], []]
    for _ in range(NUM_STEPS):
        began = time.perf_counter()
        shares = [next(passes[0])]
        our_s.append(time.perf_counter() - began)
        shares += [next(each) for each in passes[1:]]
        batch = [index for share in shares for index in share]
        own_lengths = lengths[batch].tolist()
        ours += slowest(shares, lengths, speeds)
        limit += least_time(own_lengths, speeds)
        for place, peer in enumerate(peers):
            began = time.perf_counter()
            assigned = peer._assign(batch, own_lengths)
            their_s[place].append(time.perf_counter() - began)
            theirs[place] += slowest([steps[0] for steps in assigned], lengths, speeds)
    return {
        "ours": ours,
        "limit": limit,
        "hf": min(theirs),
        "our_s": statistics.median(our_s),
        "hf_s": min(map(statistics.median, their_s)),
    }


def tables() -> dict[str, float]:
    """Print the costs and the times to decide; return the figures."""
    print("slowest rank's time over 200 steps, over the limit: ours, transformers, ours of transformers")
    of_hf: dict[bool, list[float]] = {True: [], False: []}
    of_limit: dict[bool, list[float]] = {True: [], False: []}
    decision, found = [], {}
    cases = [(*case, (1.0,) * case[0]) for case in EQUAL] + [(*case, SPEEDS) for case in UNLIKE]
    for num_ranks, per_rank, speeds in cases:
        is_equal = len(set(speeds)) == 1
        each = compare(num_ranks, per_rank, speeds)
        of_hf[is_equal].append(each["ours"] / each["hf"])
        of_limit[is_equal].append(each["ours"] / each["limit"])
        name = f"{num_ranks} x {per_rank}" + ("" if is_equal else ", speeds 1 1 2 4")
        print(
            f"  {name:<26}{of_limit[is_equal][-1]:>8.4f}{each['hf'] / each['limit']:>9.4f}"
            f"{of_hf[is_equal][-1]:>9.4f}   decision {1e3 * each['our_s']:.3f} ms, "
            f"{1e3 * each['hf_s']:.3f} ms, {each['our_s'] / each['hf_s']:.3f}"
        )
        if is_equal:
            decision.append(each["our_s"] / each["hf_s"])
            found[f"decision_ms_{num_ranks}x{per_rank}"] = 1e3 * each["our_s"]
    return {
        "of_hf_equal_max": max(of_hf[True]),
        "of_limit_equal_max": max(of_limit[True]),
        "of_hf_unlike": max(of_hf[False]),
        "of_limit_unlike": max(of_limit[False]),
        "decision_of_hf_max": max(decision),
        **found,
    }


@contextmanager
def other_work(core: int) -> Iterator[None]:
    """One busy process on a core."""
    with subprocess.Popen([sys.executable, "-c", BUSY % core]) as busy:
        try:
            yield
        finally:
            busy.kill()


def ddp_run(name: str) -> list[dict[str, float]]:
    """A run of two ranks; what each printed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "workloads.ddp_tokens", name, str(rank), f"{folder}/store"],
                env=environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank of the DDP run with {name} failed; its output is above")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def real_runs(repetitions: int) -> dict[str, float]:
    """Both samplers in turn, and the ratio of the medians of their wall times."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("the DDP runs need two cores; leave them out with --repetitions 0")
    runs: dict[str, list[list[dict[str, float]]]] = {"ours": [], "hf": []}
    with other_work(cores[1]):
        for _ in range(repetitions):
            for name, of_name in runs.items():
                of_name.append(ddp_run(name))
    seconds = {name: [max(rank["seconds"] for rank in run) for run in each] for name, each in runs.items()}
    limits = [
        sum(rank["tokens"] for rank in run) / sum(rank["tokens"] / rank["own_s"] for rank in run)
        for run in runs["ours"]
    ]
    ours, peer, limit = statistics.median(seconds["ours"]), statistics.median(seconds["hf"]), min(limits)
    print(
        f"real DDP run on two cores, one with other work too: ours {ours:.1f} s, transformers {peer:.1f} s, "
        f"limit {limit:.1f} s; ours of transformers {ours / peer:.3f}, limit of it {limit / peer:.3f}"
    )
    return {
        "ddp_of_hf": ours / peer,
        "ddp_limit_of_hf": limit / peer,
        "ddp_ours_s": ours,
        "ddp_hf_s": peer,
        "ddp_spread": max(seconds["ours"]) / min(seconds["ours"]),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repetitions", type=int, default=3, help="DDP runs of each sampler (default: 3)")
    args = parser.parse_args()
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"this bench needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    import transformers

    figures: dict[str, Any] = {"load_before": os.getloadavg()[0], "transformers": transformers.__version__}
    figures |= tables()
    if args.repetitions:
        figures |= real_runs(args.repetitions)
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
