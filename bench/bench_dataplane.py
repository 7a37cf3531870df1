"""Blocks delivered to several consumers of one node: the ring, TensorFlow's data service, and the limit.

    python bench/bench_dataplane.py --json dataplane.json

The ways take turns, so that a noisy machine affects all of them equally. In the first ones every consumer
copies every block into memory of its own:

- `ring`: one producer writes each block into the ring, and the consumers read it from there;
- `tf.data service`: dispatcher and worker in one process; the consumers share one job through
  `CrossTrainerCache`; infinite data set, no compression;
- `plain copies`: as many processes (consumers and producer) only copy one block, with NumPy;
- `shared copies`: the same, but from and to the ring's memory, in no order: the machine's price for moving
  data between cores;
- `hand-over`: the ring's copies strictly in turn, each on another core than the one before, each timed
  (median). The rate is a bound: the number of cores over the sum of the copies, every hand-over between cores
  included. If a process finds a block in its own core's cache, the ring may be faster;
- `hand-over, NumPy`: the same, but written with plain stores.

In the others every consumer reads every byte of every block once, with NumPy:

- `in place`: the ring, read in place, as a step does: each block becomes a `tf.Tensor`, whose buffer is read;
- `tf.data service, read`: as above, and the buffer of each tensor is read;
- `reads only`: as many processes (consumers and producer) only read the ring's memory, in no order;
- `bare loop`: the order of the ring and nothing else: stamp, write, cursor, `sched_yield`. No tensor is made.

Results are medians over the rounds of the ratios within each round. The limits show how much of a core each
way takes, which decides if there are fewer cores than processes. Other load slows the ring and the plain
copies, but hardly the medians of the hand-over, so compare these on a quiet machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.provenance import provenance
from support.starting import MPI_ENVIRONMENT, environment, mpirun

HERE = Path(__file__).resolve().parent
WAYS = (
    "ring",
    "memcpy",
    "shared",
    "handover",
    "plain_handover",
    "in_place",
    "reads",
    "bare",
    "tfdata",
    "tfdata_read",
)
TITLES = {
    "ring": "ring",
    "memcpy": "plain copies",
    "shared": "shared copies",
    "handover": "hand-over",
    "plain_handover": "hand-over, NumPy",
    "tfdata": "tf.data service",
    "in_place": "in place",
    "tfdata_read": "tf.data, read",
    "reads": "reads only",
    "bare": "bare loop",
}
PAUSE_S = 0.2  # before each way
REFILL_S = 5.0  # after the data service's turn, in which it fills its buffers again
NUM_HAND_OVERS = 100  # per round; enough for a median
# Which way's rate is divided by that of another one, and the name of the ratio.
RATIOS = {
    "tfdata": ("ring", "vs_tfdata"),
    "memcpy": ("ring", "of_memcpy"),
    "shared": ("ring", "of_shared_copies"),
    "handover": ("ring", "of_handover_bound"),
    "plain_handover": ("ring", "of_plain_handover_bound"),
    "tfdata_read": ("in_place", "in_place_vs_tfdata"),
    "reads": ("in_place", "of_read_limit"),
    "bare": ("in_place", "of_bare_loop"),
}
WANTED = {
    "vs_tfdata": 20.0,
    "of_memcpy": 0.6,
    "in_place_vs_tfdata": 30.0,
    "of_read_limit": 0.6,
    "of_bare_loop": 0.8,
}
COMMANDS = {"tfdata": "run", "tfdata_read": "read"}  # of the data service


class Peer:
    """A child process that measures on request: one command line in, one JSON line out."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> dict[str, Any]:
        """The next line.

        Raises:
            RuntimeError: the child has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with exit code {self._process.wait()}: {' '.join(self._command)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        """Send one command and wait for the answer."""
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        """Send one command that has no answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Close its input and wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def peers(args: argparse.Namespace) -> Iterator[dict[str, Peer]]:
    """Start both children, and wait until the data service has delivered its first blocks."""
    shape = ["--shape", *map(str, args.shape)]
    service = Peer(
        [
            sys.executable,
            str(HERE / "ranks/dataplane_tfdata.py"),
            *shape,
            "--num-consumers",
            str(args.num_consumers),
        ],
        environment(OMP_NUM_THREADS="1"),
    )
    service.answer()
    ring = [str(HERE / "ranks/dataplane.py"), *shape, "--num-slots", str(args.num_slots)]
    if args.by_sample:
        ring.append("--by-sample")
    ranks = Peer(
        [*mpirun(), "-n", str(args.num_consumers + 1), sys.executable, *ring],
        environment(OMP_NUM_THREADS="1", **MPI_ENVIRONMENT),
    )
    yield {way: service if way in COMMANDS else ranks for way in WAYS}
    ranks.tell("quit")
    ranks.wait()
    service.wait()


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    """Blocks per second and CPU time of all ways, one entry per round."""
    num_blocks = dict.fromkeys(WAYS, args.num_blocks)
    for way in COMMANDS:
        num_blocks[way] = max(1, args.num_blocks // 20)
    num_blocks["handover"] = num_blocks["plain_handover"] = min(args.num_blocks, NUM_HAND_OVERS)
    rounds = []
    with peers(args) as children:
        for _ in range(args.rounds):
            facts: dict[str, float] = {}
            time.sleep(REFILL_S)
            for way in WAYS:
                time.sleep(PAUSE_S)
                answer = children[way].ask(f"{COMMANDS.get(way, way)} {num_blocks[way]}")
                facts |= {f"{way}_{name}": value for name, value in answer.items()}
            rounds.append(facts)
    return rounds


def summarise(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Medians over the rounds: rates, and ratios within each round."""
    result = {
        name: statistics.median(
            facts[f"{ours}_blocks_per_s"] / facts[f"{way}_blocks_per_s"] for facts in rounds
        )
        for way, (ours, name) in RATIOS.items()
    }
    return result | {key: statistics.median(facts[key] for facts in rounds) for key in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", type=int, nargs="+", default=[64, 96, 96, 3], help="shape of a block, uint8"
    )
    parser.add_argument("--num-consumers", type=int, default=4)
    parser.add_argument("--num-slots", type=int, default=4, help="blocks that the ring holds")
    parser.add_argument(
        "--num-blocks", type=int, default=2000, help="per round; a 20th of them for the data service"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--by-sample", action="store_true", help="the producer writes one sample at a time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    result = summarise(measure(args))
    print(f"{'way':<16} {'blocks/s':>10} {'CPU us/block':>13} {'ours / way':>11}")
    for way in WAYS:
        rate = result[f"{way}_blocks_per_s"]
        cpu = f"{result[f'{way}_cpu_us_per_block']:.0f}" if f"{way}_cpu_us_per_block" in result else ""
        ratio = result[RATIOS[way][1]] if way in RATIOS else 1.0
        print(f"{TITLES[way]:<16} {rate:>10.0f} {cpu:>13} {ratio:>11.2f}")
    for way in ("handover", "plain_handover"):
        copies = f"write {result[f'{way}_write_us']:.0f} us, each reader {result[f'{way}_read_us']:.0f} us"
        print(f"{TITLES[way]}: {copies}")
    for key, wanted in WANTED.items():
        print(f"{key} {result[key]:.2f} (target: at least {wanted})")
    if args.json:
        facts = {**result, "load_before": load_before, "num_slots": args.num_slots, **provenance()}
        args.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
