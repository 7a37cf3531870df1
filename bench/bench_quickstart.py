"""The quick start against plain Keras: the same networks, epochs, data and preprocessing, imports included.

Three figures, all of them ours over Keras' (lower is better):

- `vs_keras_processes`: wall time of `hpcbal run configs/quickstart.yaml`, over that of plain Keras processes,
  one per core. A process that has finished a network takes the next one. They train each network for as
  many epochs as ours had. Both start with Python's first import and end with the last process.
- `vs_keras_processes_long`: the same with 40 epochs for each network.
- `step_vs_keras_max`: a step of a group of one rank over Keras' own compiled step, median, the largest of
  four networks. One core, one thread.

The two take turns, and each ratio is the median over the pairs. Figures that end in `_cpu` compare the user
and system time of all processes; on a busy machine only they mean something.

    python bench/bench_quickstart.py --json quickstart.json
    python bench/bench_quickstart.py --repeat 1 --most-epochs 1 --epochs-long 2 --step-rounds 2   # short
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.figures import parser_of, write_figures
from support.starting import HERE, environment

from hpcbal.config import load_ensemble
from hpcbal.events.ensemble import EpochDone
from hpcbal.telemetry.ledger.file import lines_of, read_ledger

STEP_NETWORKS = ("resnet-8-w8", "densenet-10-k8", "densenet-16-k12", "resnet-14-w16")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side of a comparison.

    Attributes:
        title: for people.
        key: in the names of figures.
        config: the ensemble that both train.
        limits: of the figures: short runs, long runs, steps.
    """

    title: str
    key: str
    config: Path
    limits: tuple[float, float, float]

    @property
    def keys(self) -> tuple[str, str, str]:
        """The names of these figures."""
        return f"vs_{self.key}_processes", f"vs_{self.key}_processes_long", f"step_vs_{self.key}_max"


KERAS = Peer("Keras", "keras", HERE.parent / "configs" / "quickstart.yaml", (1.5, 1.15, 1.1))


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time and CPU time of a command and its children, in seconds."""

    wall_s: float
    cpu_s: float


def quickstart(
    config: Path, output: Path, sections: dict[str, Any], epochs: int | None, most: int | None
) -> dict[str, Any]:
    """The configuration of a quick start, with changes.

    Args:
        config: its file.
        output: directory of the run.
        sections: whole sections that replace those of the file, such as `slots`.
        epochs: each network trains for so many, whatever its accuracy; None: by its own stop rules.
        most: no network trains longer than this, and accuracy ends nothing; None: no such limit.
    """
    tree: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    tree["output"] = {"dir": str(output)}
    for owner in (tree["defaults"], *tree["dnns"], *tree["sweeps"]):
        if epochs is not None and ("stop" in owner or owner is tree["defaults"]):
            owner["stop"] = {"max_epochs": epochs}
        elif most is not None and "stop" in owner:
            owner["stop"] = {"max_epochs": min(most, owner["stop"]["max_epochs"])}
    return tree | sections


def run_ours(config: Path) -> Cost:
    """`hpcbal run`, from a shell's point of view."""
    return run_together([([sys.executable, "-m", "hpcbal", "run", str(config)], environment(), None)])


def run_plain(config: Path, epochs: Path, claims: Path) -> Cost:
    """One process per core, or fewer if there are fewer networks."""
    claims.mkdir()
    command = [sys.executable, "-m", "support.plain_process", str(config), str(epochs), str(claims)]
    cores = sorted(os.sched_getaffinity(0))[: len(load_ensemble(config).dnns)]
    own = environment(**ONE_THREAD, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="2")
    return run_together([(command, own, core) for core in cores])


def run_together(commands: Sequence[tuple[list[str], dict[str, str], int | None]]) -> Cost:
    """Start the commands, each on its core if one is given, and wait for all.

    Raises: SystemExit: one of them failed; the message has its output.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryFile() as output:
        started = []
        for command, own, core in commands:
            process = subprocess.Popen(command, env=own, cwd=HERE, stdout=output, stderr=subprocess.STDOUT)
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            started.append(process)
        codes = [process.wait() for process in started]
        wall_s = time.perf_counter() - began
        if any(codes):
            output.seek(0)
            raise SystemExit(f"{output.read().decode(errors='replace')}\nended with codes {codes}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, used_s)


def epochs_of(output: Path) -> dict[str, int]:
    """How many epochs each network of a run has trained."""
    return Counter(line.dnn_id for line in lines_of(read_ledger(output / "ledger.jsonl"), EpochDone))


def pair(folder: Path, tree: dict[str, Any]) -> tuple[Cost, Cost]:
    """One run of ours, then plain processes with the same epochs."""
    config, epochs = folder / "run.yaml", folder / "epochs.json"
    config.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    ours = run_ours(config)
    epochs.write_text(json.dumps(epochs_of(Path(tree["output"]["dir"]))), encoding="utf-8")
    return ours, run_plain(config, epochs, folder / "claims")


def compare(
    args: argparse.Namespace, peer: Peer, key: str, epochs: int | None, most: int | None
) -> dict[str, float]:
    """Pairs of runs; returns the figures under `key`."""
    pairs = []
    for number in range(args.repeat):
        with tempfile.TemporaryDirectory() as name:
            tree = quickstart(peer.config, Path(name) / "out", {}, epochs, most)
            for override in args.set:
                section, _, value = override.partition("=")
                owner, _, last = section.partition(".")
                tree[owner] = {**(tree.get(owner) or {}), last: yaml.safe_load(value)}
            ours, plain = pair(Path(name), tree)
        pairs.append((ours, plain))
        print(
            f"{key} {number + 1}: ours {ours.wall_s:.1f} s ({ours.cpu_s:.1f} s of CPU), "
            f"{peer.title} {plain.wall_s:.1f} s ({plain.cpu_s:.1f} s of CPU), "
            f"ratio {ours.wall_s / plain.wall_s:.2f}",
            flush=True,
        )
    return {
        key: statistics.median(ours.wall_s / plain.wall_s for ours, plain in pairs),
        f"{key}_cpu": statistics.median(ours.cpu_s / plain.cpu_s for ours, plain in pairs),
        f"{key}_ours_s": statistics.median(ours.wall_s for ours, _ in pairs),
        f"{key}_{peer.key}_s": statistics.median(plain.wall_s for _, plain in pairs),
    }


def compare_steps(args: argparse.Namespace, peer: Peer) -> dict[str, float]:
    """The largest ratio of steps, and that of each network."""
    command = [sys.executable, "-m", "support.plain_steps", str(peer.config)]
    command += [str(args.step_rounds), str(args.step_block), *STEP_NETWORKS]
    core = max(os.sched_getaffinity(0))
    medians = json.loads(
        subprocess.run(
            ["taskset", "-c", str(core), *command],
            env=environment(**ONE_THREAD),
            cwd=HERE,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    )
    ratios = {}
    for name, own in medians.items():
        ratios[f"step_vs_{peer.key}_{name}"] = own["ours_ms"] / own["plain_ms"]
        print(f"step of {name}: ours {own['ours_ms']:.2f} ms, {peer.title} {own['plain_ms']:.2f} ms")
    return {peer.keys[2]: max(ratios.values()), **ratios}


def main(argv: Sequence[str] | None = None, peer: Peer = KERAS, description: str | None = __doc__) -> None:
    parser = parser_of(description)
    parser.add_argument("--repeat", type=int, default=3, help="pairs of runs (default: 3)")
    parser.add_argument("--most-epochs", type=int, help="short runs end here at the latest")
    parser.add_argument("--epochs-long", type=int, default=40, help="epochs of the long runs (default: 40)")
    parser.add_argument(
        "--step-rounds", type=int, default=20, help="blocks of steps per network (default: 20)"
    )
    parser.add_argument("--step-block", type=int, default=25, help="steps in a block (default: 25)")
    parser.add_argument(
        "--only", choices=("short", "long", "steps"), action="append", help="one part; may be repeated"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change the run, not its peer"
    )
    args = parser.parse_args(argv)
    parts = args.only or ["steps", "short", "long"]
    figures: dict[str, float] = {}
    if "steps" in parts:
        figures |= compare_steps(args, peer)
    if "short" in parts:
        figures |= compare(args, peer, peer.keys[0], None, args.most_epochs)
    if "long" in parts:
        figures |= compare(args, peer, peer.keys[1], args.epochs_long, None)
    for key, limit in zip(peer.keys, peer.limits, strict=True):
        if key in figures:
            print(f"{key:<24} {figures[key]:.3f}   (at most {limit})")
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
