"""The cost of preprocessing that 4 DNNs share: CPU seconds over those of one DNN alone.

A preprocessor rank decodes, resizes, crops, mirrors and normalises PNG photographs. Trainer ranks read them
through the ring and copy every batch out: one trainer alone, 4 trainers that share a stream, and 4 trainers
with a stream and a preprocessor each (no sharing). The limit is 1 with sharing and 4 without.

    python bench/bench_sharing.py --images 192 --side 224 --json sharing.json

The JSON holds one flat object with `shared_cpu_ratio` (at most 1.1) and `unshared_cpu_ratio`. Each is the
median over the repeats, which take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from support.provenance import provenance

from hpcbal.runtime.launch import mpirun_command, mpirun_environment

HERE = Path(__file__).resolve().parent
NUM_RANKS = 8  # as in ranks/sharing.py: 4 streams of one preprocessor and one trainer
TIMEOUT_S = 900
CPU_S, SAMPLES, WALL_S = 0, 1, 2  # columns of the output of ranks/sharing.py


def write_images(directory: Path, num_images: int, height: int, width: int) -> float:
    """Write PNG files of two classes, smooth shapes with a camera's noise; returns their mean bytes."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:height, 0:width]
    sizes = []
    for number in range(num_images):
        folder = directory / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        waves = rng.uniform(0.01, 0.08, (2, 3))
        image = 128 + 90 * np.sin(rows[..., None] * waves[0]) * np.cos(columns[..., None] * waves[1])
        image = np.clip(image + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8)
        file = folder / f"{number:05d}.png"
        Image.fromarray(image).save(file)
        sizes.append(file.stat().st_size)
    return float(np.mean(sizes))


def run_ranks(images: Path, side: int, passes: int, repeats: int) -> dict[str, list[list[float]]]:
    """Start ranks/sharing.py under mpirun and read its output.

    Raises:
        SystemExit: the ranks failed; their output is shown.
    """
    mpirun = mpirun_command((), NUM_RANKS)
    command = [*mpirun[: mpirun.index(sys.executable) + 1], str(HERE / "ranks/sharing.py")]
    command += ["--images", str(images), "--side", str(side)]
    command += ["--passes", str(passes), "--repeats", str(repeats)]
    environment = mpirun_environment(os.environ, NUM_RANKS, len(os.sched_getaffinity(0)))
    paths = (str(HERE.parent), environment.get("PYTHONPATH", ""))
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{done.stderr}\nthe ranks ended with code {done.returncode}")
    measured: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def summarise(measured: dict[str, list[list[float]]]) -> dict[str, float]:
    """Medians of the ratios within each repeat, and the values behind them."""
    alone = measured["alone"]

    def ratio(name: str, column: int) -> float:
        pairs = zip(measured[name], alone, strict=True)
        return statistics.median(row[column] / base[column] for row, base in pairs)

    return {
        "shared_cpu_ratio": ratio("shared", CPU_S),
        "unshared_cpu_ratio": ratio("unshared", CPU_S),
        "shared_samples_ratio": ratio("shared", SAMPLES),
        "unshared_samples_ratio": ratio("unshared", SAMPLES),
        "unshared_over_shared_wall": statistics.median(
            row[WALL_S] / base[WALL_S]
            for row, base in zip(measured["unshared"], measured["shared"], strict=True)
        ),
        "alone_cpu_ms_per_sample": 1e3 * statistics.median(row[CPU_S] / row[SAMPLES] for row in alone),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=128, metavar="N", help="PNG files to make")
    parser.add_argument("--height", type=int, default=300, help="pixels of the files")
    parser.add_argument("--width", type=int, default=400, help="pixels of the files")
    parser.add_argument("--side", type=int, default=224, help="pixels of a preprocessed sample")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench_sharing_") as scratch:
        mean_bytes = write_images(Path(scratch), args.images, args.height, args.width)
        results = summarise(run_ranks(Path(scratch), args.side, args.passes, args.repeats))
    print(f"{args.images} PNG files of {args.height}x{args.width} pixels, {mean_bytes / 1e3:.0f} kB each")
    for key, value in results.items():
        print(f"{key:28s} {value:.3f}")
    if args.json:
        sizes = {"num_images": args.images, "height": args.height, "width": args.width, "side": args.side}
        sizes |= {"passes": args.passes, "repeats": args.repeats}
        args.json.write_text(json.dumps(results | sizes | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
