"""The cache of decoded samples: what passes after the first cost, and how much memory it takes.

    pip install torch
    python bench/bench_cache.py --json out.json

Consumers want every sample of the same JPEGs once in a pass, in batches of 64 that they copy. The files, of
500x375 pixels, are decoded to 72x72 or 256x256. 100 files stand for 1,000 samples, and each sample is decoded
on its own. Ours are a preprocessor and four consumers of the shared stream. The contenders take turns, each
in processes of its own, and a figure is the median over the turns of a ratio.

- `cached_of_copies`: samples/s of our four consumers from the second pass on, over four (of five) processes
  that only copy batches out of an array, at 72 pixels (at least 0.5); `cached_of_copies_256`, at 256 pixels.
- `cached_vs_tfdata`: over four processes, each with a `tf.data` pipeline that ends in `.cache()`, 72 pixels.
- `cache_memory`: memory of the cache over the decoded bytes, 72 pixels (at most 1.1); `tfdata_memory`: what
  the four pipelines add, over the same.
- `decodes_per_sample`: decoded samples over samples in a run of four DNNs, whose speeds are 1 to 8 (at most
  1.05), in rounds; `decodes_per_sample_elastic`: the same if each DNN trains at its own pace;
  `decodes_per_sample_nodes`: that on two nodes (parts of this machine), each with a cache for 60 %.
- `cpu_four_over_one`: CPU seconds of all processes for four consumers over those for one, three passes;
  `cpu_vs_dataloaders` and `cpu_vs_service`: ours for four over four PyTorch `DataLoader`s, and over
  TensorFlow's data service, which decodes once and has a cross-trainer cache. Without imports.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from support.figures import parser_of, write_figures
from support.photographs import encoded, photograph
from support.starting import HERE, MPI_ENVIRONMENT, environment, mpirun, train

from hpcbal.telemetry.ledger.run import RunFinishedLine

HEIGHT, WIDTH, CONTRAST = 375, 500, 20.0
NUM_FILES, NUM_SAMPLES = 100, 1000
SIZES = (72, 256)
NUM_CONSUMERS = 4
SPEEDS = (1, 2, 4, 8)
SLOWEST_SAMPLES_PER_S = 400.0
RANKS_PER_NODE = 4
"""Two slots, and one or two preprocessors."""
LIMIT_S = 200.0


def ranks(mode: str, folder: Path, size: int, passes: int, num_ranks: int) -> dict[str, Any]:
    """Start the ranks of a mode, and return what they found, see bench/ranks/cached_samples.py."""
    task = {"mode": mode, "folder": str(folder), "num_samples": NUM_SAMPLES, "size": size, "passes": passes}
    program = [sys.executable, str(HERE / "ranks" / "cached_samples.py"), json.dumps(task)]
    done = subprocess.run(
        [*mpirun(), "-n", str(num_ranks), *program],
        env=environment(**{"OMP_NUM_THREADS": "1", **MPI_ENVIRONMENT}),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\n{mode} ended with code {done.returncode}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def later_rate(facts: dict[str, Any]) -> float:
    """Samples/s of four consumers together, from the second pass on."""
    consumers = facts["seconds"][-NUM_CONSUMERS:]
    return sum(NUM_SAMPLES * (len(seconds) - 1) / sum(seconds[1:]) for seconds in consumers)


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    return statistics.median(one / other for one, other in pairs)


def link_images(folder: Path, work: Path) -> None:
    """Make an image folder of `NUM_SAMPLES` links to the files."""
    for number in range(NUM_SAMPLES):
        images = work / "images" / f"class{number % 2}"
        images.mkdir(parents=True, exist_ok=True)
        (images / f"{number:04}.jpg").symlink_to(folder / f"{number % NUM_FILES:03}.jpg")


def decodes_per_sample(work: Path, num_nodes: int = 1, **schedule: Any) -> float:
    """Of a run of four DNNs, on one slot each."""
    dnns = [
        {
            "name": f"dnn{speed}",
            "model": "hpcbal.models:softmax",
            "args": {"max_features": 64},
            "batch_size": 64,
            "optimizer": {"name": "sgd", "learning_rate": 0.001},
            "stop": {"max_epochs": 2 + speed // 4},
        }
        for speed in SPEEDS
    ]
    config = {
        "name": "cache",
        "data": {"dataset": "hpcbal.data:image_folder", "args": {"path": str(work / "images")}},
        "preprocessing": [{"decode": {}}, {"resize": {"height": 72, "width": 72}}, {"random_flip": {}}],
        "dnns": dnns,
        "backend": {
            "name": "emulated",
            "rates": {f"dnn{speed}": {1: SLOWEST_SAMPLES_PER_S * speed} for speed in SPEEDS},
        },
        "schedule": {"max_slots_per_dnn": 1, **schedule},
        "slots": {"per_node": 2},
        "output": {"dir": str(work / f"out-{schedule['paradigm']}-{num_nodes}")},
    }
    if num_nodes > 1:
        config["slots"] = {"per_node": 2, "ranks_per_node": RANKS_PER_NODE}
        config["dataplane"] = {"cache_bytes": int(0.6 * NUM_SAMPLES * (72 * 72 * 3 + 64))}
    entries = train(config, work, num_ranks=None if num_nodes == 1 else RANKS_PER_NODE * num_nodes)
    (last,) = (entry.line for entry in entries if isinstance(entry.line, RunFinishedLine))
    return (last.num_preprocessed - last.num_from_cache) / NUM_SAMPLES


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=2, help="turns of each contender (default: 2)")
    args = parser.parse_args()
    missing = [name for name in ("torch", "tensorflow") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"this bench needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    figures: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "files"
        folder.mkdir()
        rng = np.random.default_rng(1)
        for number in range(NUM_FILES):
            file = encoded(photograph(rng, HEIGHT, WIDTH, CONTRAST))
            (folder / f"{number:03}.jpg").write_bytes(file)
        link_images(folder, Path(temporary))
        in_rounds = decodes_per_sample(Path(temporary), paradigm="global", delta="15%")
        figures["decodes_per_sample"] = in_rounds
        figures["decodes_per_sample_elastic"] = decodes_per_sample(Path(temporary), paradigm="elastic")
        figures["decodes_per_sample_nodes"] = decodes_per_sample(Path(temporary), 2, paradigm="elastic")
        four, all_ranks = NUM_CONSUMERS, NUM_CONSUMERS + 1
        turns: list[dict[str, dict[str, Any]]] = []
        for _ in range(args.turns):
            found = {}
            for size, passes in zip(SIZES, (60, 12), strict=True):
                found[f"hpcbal{size}"] = ranks("hpcbal", folder, size, passes, all_ranks)
                found[f"copies{size}"] = ranks("copies", folder, size, passes, all_ranks)
            found["tf"] = ranks("tf-cache", folder, 72, 10, four)
            turns.append(found)
        for name, mode in (("cached", "hpcbal72"), ("copied", "copies72"), ("copied_256", "copies256")):
            figures[f"{name}_samples_per_s"] = statistics.median(later_rate(t[mode]) for t in turns)
        figures["cached_of_copies"] = median_ratio(
            (later_rate(t["hpcbal72"]), later_rate(t["copies72"])) for t in turns
        )
        figures["cached_of_copies_256"] = median_ratio(
            (later_rate(t["hpcbal256"]), later_rate(t["copies256"])) for t in turns
        )
        figures["cached_vs_tfdata"] = median_ratio(
            (later_rate(t["hpcbal72"]), later_rate(t["tf"])) for t in turns
        )
        ours = turns[0]["hpcbal72"]
        figures["cache_memory"] = ours["cache_bytes"] / ours["data_bytes"]
        figures["tfdata_memory"] = turns[0]["tf"]["added_bytes"] / ours["data_bytes"]
        cpu = {
            name: ranks(mode, folder, 72, 3, num_ranks)["cpu_s"]
            for name, mode, num_ranks in (
                ("one", "hpcbal", 2),
                ("four", "hpcbal", all_ranks),
                ("dataloaders", "torch", four),
                ("service", "tf-service", all_ranks),
            )
        }
        figures |= {f"cpu_s_{name}": seconds for name, seconds in cpu.items()}
        figures["cpu_four_over_one"] = cpu["four"] / cpu["one"]
        figures["cpu_vs_dataloaders"] = cpu["four"] / cpu["dataloaders"]
        figures["cpu_vs_service"] = cpu["four"] / cpu["service"]
    figures["bench_s"] = time.monotonic() - began
    for name, value in figures.items():
        print(f"{name:24} {value:12.4g}")
    write_figures(args.json, figures)


if __name__ == "__main__":
    main()
