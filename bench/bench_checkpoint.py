"""The cost of checkpoints in the quick start: the share of its slots' time in which groups wait for them.

A real `hpcbal run` of configs/quickstart.yaml (or another config) with default settings. For each checkpoint
the ledger records how long its group waited: for the copy of the weights and, at the end of a round, until
the file was on disk. The share is waiting time times slots, over the slot-seconds of the run.

For comparison, the cost of as many checkpoints of the same networks, measured on the same machine:

- the peer: `keras.Model.save` (architecture, weights, optimizer), while the group waits;
- the limit: the bytes of our files, written at once and flushed, without any copy.

    python bench/bench_checkpoint.py --json out.json

The JSON holds one flat object; `checkpoint_share` is ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.figures import parser_of, write_figures

from hpcbal.config import EnsembleConfig, load_ensemble, load_object
from hpcbal.events.ensemble import CheckpointWritten, GroupLeft, StartRound
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.dnn_lines import BestKeptLine
from hpcbal.telemetry.ledger.file import lines_of, read_ledger

ROOT = Path(__file__).resolve().parents[1]


def run_ensemble(config: Path, output: Path) -> list[Entry]:
    """The ledger of a run."""
    subprocess.run(
        [sys.executable, "-m", "hpcbal", "run", str(config), "--output", str(output)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    return read_ledger(output / "ledger.jsonl")


def slots_of_rounds(ledger: Sequence[Entry]) -> list[tuple[str, int, float]]:
    """(DNN, slots of its group, seconds of waiting) of every checkpoint, and of best weights."""
    slots: dict[str, int] = {}
    found = []
    for entry in ledger:
        match entry.line:
            case StartRound(plan):
                slots = {dnn: len(own) for dnn, own in plan.slots_of_dnn.items()}
            case CheckpointWritten(dnn, held_s=held_s):
                found.append((dnn, slots[dnn], held_s))
            case BestKeptLine(dnn, held_s=held_s) if held_s > 0.0:  # else part of a checkpoint
                found.append((dnn, slots[dnn], held_s))
    return found


def peer_and_limit(config: EnsembleConfig, run: RunDirectory, repeats: int) -> dict[str, tuple[float, float]]:
    """For each DNN: seconds of a Keras save, and of writing and flushing the bytes of our file."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    costs = {}
    with tempfile.TemporaryDirectory(dir=run.root) as name:
        for dnn in config.dnns:
            checkpoint = run.job(dnn.name) / "checkpoint.h5"
            if not checkpoint.exists():
                continue
            model = load_object(dnn.model)((8, 8, 1), 10, **dnn.args)
            model.compile(optimizer=dnn.optimizer.name)
            model.optimizer.build(model.trainable_variables)
            data = checkpoint.read_bytes()
            saves = [_time_of(lambda model=model: model.save(Path(name) / "m.keras")) for _ in range(repeats)]
            writes = [_time_of(lambda data=data: _write(Path(name) / "raw", data)) for _ in range(repeats)]
            costs[dnn.name] = (float(np.median(saves)), float(np.median(writes)))
    return costs


def _time_of(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of peer and limit")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "run"
        ledger = run_ensemble(args.config, output)
        checkpoints = slots_of_rounds(ledger)
        costs = peer_and_limit(load_ensemble(args.config), RunDirectory(output), args.repeats)
    total = sum(line.slot_seconds for line in lines_of(ledger, GroupLeft))
    share = sum(slots * held for _, slots, held in checkpoints) / total
    peer = sum(slots * costs[dnn][0] for dnn, slots, _ in checkpoints) / total
    limit = sum(slots * costs[dnn][1] for dnn, slots, _ in checkpoints) / total
    print(f"{len(checkpoints)} checkpoints in {total:.0f} slot-seconds")
    print(f"hpcbal                             {share:.4f}   (at most 0.02; [FLEET] Table 4: 0.027 to 0.063)")
    print(f"peer: keras.Model.save             {peer:.4f}")
    print(f"limit: the same bytes, one write   {limit:.4f}")
    figures = {"checkpoint_share": share, "keras_share": peer, "limit_share": limit}
    write_figures(args.json, {**figures, "num_checkpoints": len(checkpoints), "slot_seconds": total})


if __name__ == "__main__":
    main()
