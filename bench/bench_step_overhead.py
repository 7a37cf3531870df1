"""The part of a step that is not spent computing: waiting for data, messages, weights.

Four emulated DNNs, each on one slot, take steps of 20 ms on blocks of 64x96x96x3 bytes in a real
`hpcbal run` (one scheduler, one preprocessor, four trainers). The share is 1 - computing / wall time from the
end of the first pass to the end of the last. It includes the ends of passes (reports, decisions); what
happens once a round (building, the last checkpoint) is shown separately. For comparison:

- the peer: four processes that read the same batches from an array of their own and take the same steps,
  without stream, messages and scheduler;
- the limit: four processes that only sleep 20 ms as often. Their loss is the machine's.

    python bench/bench_step_overhead.py --json out.json

The JSON holds one flat object; `overhead_share` is ours.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from support.figures import parser_of, write_figures
from support.starting import train

from hpcbal.events.ensemble import EpochDone, GroupLeft
from hpcbal.telemetry.ledger.file import lines_of

NUM_SLOTS = 4
BATCH = 64
VALIDATION_SHARE = 0.1
EVALUATION_SPEEDUP = 3.0  # as in hpcbal/training/emulated_backend.py


def config_of(args: argparse.Namespace, output: Path) -> dict[str, object]:
    """An ensemble of equal DNNs that all train for all passes."""
    rate = BATCH / args.step_s
    return {
        "name": "step-overhead",
        "data": {
            "dataset": "workloads.step_overhead:random_images",
            "args": {"num_samples": args.samples, "height": 96, "width": 96},
            "validation_fraction": VALIDATION_SHARE,
        },
        "dnns": [
            {
                "name": f"dnn{i}",
                "model": "hpcbal.models:softmax",
                "args": {"max_features": 256},
                "batch_size": BATCH,
                "optimizer": {"name": "sgd", "learning_rate": 0.001},
                "stop": {"max_epochs": args.passes},
            }
            for i in range(NUM_SLOTS)
        ],
        "backend": {"name": "emulated", "rates": {f"dnn{i}": {1: rate} for i in range(NUM_SLOTS)}},
        "slots": {"per_node": NUM_SLOTS},
        "schedule": {"paradigm": "global", "delta": "50%"},
        "output": {"dir": str(output)},
    }


def measure_run(args: argparse.Namespace) -> dict[str, float]:
    """Wall time of the passes of a real run, compared with the emulated time of its steps."""
    with tempfile.TemporaryDirectory() as name:
        ledger = train(config_of(args, Path(name) / "out"), Path(name))
    epochs = lines_of(ledger, EpochDone)
    left = lines_of(ledger, GroupLeft)
    num_validation = round(args.samples * VALIDATION_SHARE)
    computing_s = (
        args.step_s * ((args.samples - num_validation) + num_validation / EVALUATION_SPEEDUP) / BATCH
    )
    ends = [
        [each.unix_s for each in ledger if isinstance(each.line, EpochDone) and each.line.dnn_id == f"dnn{i}"]
        for i in range(NUM_SLOTS)
    ]
    steady_s = float(np.median([(times[-1] - times[0]) / (len(times) - 1) for times in ends]))
    later = epochs[NUM_SLOTS:]
    return {
        "overhead_share": 1.0 - computing_s / steady_s,
        "inside_passes_share": 1.0 - computing_s / float(np.median([e.seconds for e in later])),
        "data_wait_share": float(np.median([e.facts.wait_s / e.seconds for e in later])),
        "once_a_round_s": float(np.median([line.wall_time_s for line in left])) - args.passes * steady_s,
    }


def _copy_and_sleep(args: tuple[int, int, float]) -> float:
    """A process of the peer: copy batches from an array of its own, sleep for the rest of the step."""
    num_samples, num_steps, step_s = args
    images = np.random.default_rng(0).integers(0, 256, (num_samples, 96, 96, 3), np.uint8)
    batch = np.empty((BATCH, 96, 96, 3), np.uint8)
    began = time.perf_counter()
    for step in range(num_steps):
        ids = np.arange(step * BATCH, (step + 1) * BATCH) % num_samples
        np.take(images, ids, axis=0, out=batch)
        deadline = time.perf_counter() + step_s
        time.sleep(max(0.0, deadline - time.perf_counter()))
    return time.perf_counter() - began


def _sleep(args: tuple[int, int, float]) -> float:
    """A process of the limit."""
    _, num_steps, step_s = args
    began = time.perf_counter()
    for _ in range(num_steps):
        time.sleep(step_s)
    return time.perf_counter() - began


def measure_processes(work: Callable[..., float], args: argparse.Namespace) -> float:
    """Share of the time outside of steps, median of four processes that run at the same time."""
    num_steps = args.passes * args.samples // BATCH
    with multiprocessing.get_context("spawn").Pool(NUM_SLOTS) as pool:
        times = pool.map(work, [(args.samples, num_steps, args.step_s)] * NUM_SLOTS)
    return 1.0 - num_steps * args.step_s / float(np.median(times))


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=6400, help="samples of a pass, validation included")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds of one emulated step")
    args = parser.parse_args(argv)
    ours = measure_run(args)
    peer = measure_processes(_copy_and_sleep, args)
    limit = measure_processes(_sleep, args)
    print("what                                   share of a step not spent computing")
    print(f"hpcbal run                             {ours['overhead_share']:.4f}   (at most 0.03)")
    print(f"  inside passes                        {ours['inside_passes_share']:.4f}")
    print(f"  waiting for data                     {ours['data_wait_share']:.4f}")
    print(f"  (once a round: {ours['once_a_round_s']:.2f} s)")
    print(f"peer: own array per process, no stream {peer:.4f}")
    print(f"limit: sleep alone                     {limit:.4f}")
    write_figures(args.json, ours | {"peer_share": peer, "limit_share": limit})


if __name__ == "__main__":
    main()
