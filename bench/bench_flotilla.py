"""Time the planning and placement of flotillas, and compare with the literal algorithm and the optimum.

Each row has one size: seconds for one flotilla, for all of them, and for the placement of the first. Below
them, from the same run: how many times faster this is than the paper's triple loop, how many flotillas Eq. 3
as published forms, and how far placements are from the best possible ones (exhaustive, small clusters).

    python bench/bench_flotilla.py --num-dnns 100 1000 10000 --num-gpus 384 4096 --json out.json

The JSON holds one flat object; `one_flotilla_s` and `all_flotillas_s` are those of 1,000 DNNs on 4,096 GPUs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from support.provenance import provenance

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.policies.flotilla import Delta, Flotilla, create_flotilla, plan_all_flotillas
from hpcbal.policies.placement import assign_gpus
from hpcbal.policies.rates import RateTable, profiling_counts

GPUS_PER_NODE = 4  # SummitDev, [FLEET] App. B.2; 4,096 GPUs are then whole nodes
DELTA = Delta(absolute=20.0)  # [FLEET] Sec. 4.3.2
CONTRACT_SIZE = (1000, 4096)
LITERAL_SIZE = (200, 512)


def make_rates(num_dnns: int, num_gpus: int, seed: int = 0) -> RateTable:
    """A random ensemble in the ranges of [FLEET] App. B: 21 to 176 samples/s on one GPU, 2% noise."""
    rng = np.random.default_rng(seed)
    single = rng.uniform(21.0, 176.0, num_dnns)
    efficiency = rng.uniform(0.95, 0.995, num_dnns)
    measured: dict[str, dict[int, float]] = {}
    for i, count in itertools.product(
        range(num_dnns), profiling_counts(single.tolist(), GPUS_PER_NODE, num_gpus)
    ):
        noise = rng.uniform(0.98, 1.02)
        measured.setdefault(f"dnn{i:05d}", {})[count] = float(
            single[i] * count * efficiency[i] ** (count - 1) * noise
        )
    return RateTable(measured, GPUS_PER_NODE)


def literal_flotilla(
    rates: npt.NDArray[np.float64], candidates: Sequence[int], delta: float, skip_slower_counts: bool
) -> tuple[list[int], list[int]]:
    """[FLEET] Alg. 2 as three plain loops: members (rows of `rates`) and the GPUs of each, extras included.

    `rates` has shape (num_dnns, M). `skip_slower_counts` skips numbers of GPUs with which a DNN is no faster
    than with fewer, as hpcbal does; without it Eq. 3 is used as published.
    """
    table = rates.tolist()  # plain floats, because numpy scalars would slow the loops down
    num_gpus = rates.shape[1]
    fastest = max(candidates, key=lambda i: table[i][0])
    reference = table[fastest][0]
    members, counts = [fastest], [1]
    while len(members) < len(candidates):
        best = None
        for i in candidates:
            if i in members:
                continue
            top = -1.0
            for m in range(1, num_gpus - sum(counts) + 1):
                if skip_slower_counts and table[i][m - 1] <= top:
                    continue
                top = max(top, table[i][m - 1])
                distance = abs(table[i][m - 1] - reference)
                if distance <= delta and (best is None or (distance, m) < best[:2]):
                    best = (distance, m, i)
        if best is None:
            break
        members.append(best[2])
        counts.append(best[1])
    passed_over: set[int] = set()
    while sum(counts) < num_gpus and len(passed_over) < len(members):
        places = [p for p in range(len(members)) if p not in passed_over]
        slowest = min(places, key=lambda p: table[members[p]][counts[p] - 1])
        row, now = table[members[slowest]], counts[slowest]
        most = now + num_gpus - sum(counts)
        faster = next((m for m in range(now + 1, most + 1) if row[m - 1] > row[now - 1]), None)
        if faster is None:
            passed_over.add(slowest)
        else:
            counts[slowest] = faster
    return members, counts


def least_score(counts: Sequence[int], node_sizes: Sequence[int]) -> float:
    """The optimum of [FLEET] Eq. 4 over all placements, split groups and gaps included; small inputs only."""

    @functools.cache
    def best(i: int, free: tuple[int, ...]) -> float:
        if i == len(counts):
            return 0.0
        scores = []
        for parts in _ways_to_take(counts[i], free):
            left = tuple(sorted(room - part for room, part in zip(free, parts, strict=True)))
            scores.append(sum(part > 0 for part in parts) / counts[i] + best(i + 1, left))
        return min(scores)

    return best(0, tuple(sorted(node_sizes)))


def _ways_to_take(number: int, free: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to take `number` GPUs from nodes with `free` GPUs."""
    if not free:
        if number == 0:
            yield ()
        return
    for part in range(min(number, free[0]) + 1):
        for rest in _ways_to_take(number - part, free[1:]):
            yield (part, *rest)


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Wall time of `action`, the minimum of `repeats`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_size(num_dnns: int, num_gpus: int, repeats: int) -> dict[str, float]:
    """One row of the table."""
    rates = make_rates(num_dnns, num_gpus)
    dnn_ids = tuple(rates.measured)
    cluster = Cluster.uniform(-(-num_gpus // GPUS_PER_NODE), GPUS_PER_NODE)
    flotillas = plan_all_flotillas(dnn_ids, rates, num_gpus, DELTA)
    return {
        "one_flotilla_s": seconds(lambda: create_flotilla(dnn_ids, rates, num_gpus, DELTA), repeats),
        "all_flotillas_s": seconds(lambda: plan_all_flotillas(dnn_ids, rates, num_gpus, DELTA), repeats),
        "placement_s": seconds(lambda: assign_gpus(flotillas[0], cluster), repeats),
        "num_flotillas": len(flotillas),
        "gpu_share": sum(f.total_gpus for f in flotillas) / (num_gpus * len(flotillas)),
    }


def measure_literal(repeats: int) -> dict[str, float]:
    """The literal algorithm and ours on a size that both can handle."""
    num_dnns, num_gpus = LITERAL_SIZE
    rates = make_rates(num_dnns, num_gpus)
    dnn_ids = tuple(rates.measured)
    matrix = rates.matrix(dnn_ids, num_gpus)
    assert DELTA.absolute is not None
    delta = DELTA.absolute
    literal_s = seconds(lambda: literal_flotilla(matrix, range(num_dnns), delta, True), 1)
    ours_s = seconds(lambda: create_flotilla(dnn_ids, rates, num_gpus, DELTA), max(repeats, 3))
    num_literal, waiting = 0, list(range(num_dnns))
    while waiting:
        members, _ = literal_flotilla(matrix, waiting, delta, False)
        waiting = [i for i in waiting if i not in members]
        num_literal += 1
    return {
        "literal_over_ours": literal_s / ours_s,
        "literal_eq3_num_flotillas": num_literal,
        "ours_num_flotillas": len(plan_all_flotillas(dnn_ids, rates, num_gpus, DELTA)),
    }


def measure_placement(equal_nodes: bool, num_cases: int = 300, seed: int = 0) -> dict[str, float]:
    """Score over the optimal one for random flotillas on clusters of 2 to 4 nodes with 1 to 6 GPUs."""
    rng = np.random.default_rng(seed)
    ratios = []
    for _ in range(num_cases):
        sizes = rng.integers(1, 7, rng.integers(2, 5)).tolist()
        if equal_nodes:
            sizes = [sizes[0]] * len(sizes)
        cluster = Cluster(tuple(Node(f"node{i}", size) for i, size in enumerate(sizes)))
        counts: list[int] = []
        while (free := cluster.num_gpus - sum(counts)) > 0 and len(counts) < 7:
            counts.append(int(rng.integers(1, min(free, 2 * cluster.max_gpus_per_node) + 1)))
        names = tuple(f"dnn{i}" for i in range(len(counts)))
        unknown = (0.0,) * len(counts)
        flotilla = Flotilla(names, tuple(counts), unknown, unknown, 0.0)
        optimum = least_score(counts, sizes)
        ratios.append(assign_gpus(flotilla, cluster).score / optimum)
    kind = "equal" if equal_nodes else "unequal"
    return {
        f"placement_{kind}_mean_over_optimum": float(np.mean(ratios)),
        f"placement_{kind}_worst_over_optimum": max(ratios),
        f"placement_{kind}_optimal_share": float(np.mean(np.array(ratios) < 1 + 1e-9)),
    }


def show(row: Mapping[str, float]) -> str:
    """Key = value pairs of one comparison."""
    return "  ".join(f"{key} {value:.4g}" for key, value in row.items())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-dnns", type=int, nargs="+", default=[100, 1000], metavar="N")
    parser.add_argument("--num-gpus", type=int, nargs="+", default=[64, 4096], metavar="M")
    parser.add_argument("--repeats", type=int, default=3, help="measurements; the minimum counts")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    sizes = list(itertools.product(args.num_dnns, args.num_gpus))
    if CONTRACT_SIZE not in sizes:
        sizes.append(CONTRACT_SIZE)
    print("num_dnns  num_gpus  one_flotilla_s  all_flotillas_s  placement_s  num_flotillas  gpu_share")
    results: dict[str, object] = {}
    for num_dnns, num_gpus in sizes:
        row = measure_size(num_dnns, num_gpus, args.repeats)
        print(
            f"{num_dnns:8d}  {num_gpus:8d}  {row['one_flotilla_s']:14.4f}  {row['all_flotillas_s']:15.4f}  "
            f"{row['placement_s']:11.4f}  {row['num_flotillas']:13.0f}  {row['gpu_share']:9.3f}",
            flush=True,
        )
        if (num_dnns, num_gpus) == CONTRACT_SIZE:
            results |= row
    for title, comparison in (
        (f"literal Alg. 2, {LITERAL_SIZE[0]} DNNs on {LITERAL_SIZE[1]} GPUs", measure_literal(args.repeats)),
        ("placement, small clusters of equal nodes", measure_placement(equal_nodes=True)),
        ("placement, small clusters of unequal nodes", measure_placement(equal_nodes=False)),
    ):
        print(f"{title}: {show(comparison)}")
        results |= comparison
    if args.json:
        args.json.write_text(json.dumps(results | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
