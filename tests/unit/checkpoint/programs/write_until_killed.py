"""Fork a writer of checkpoints and kill it at a random moment, many times; check what is left each time.

Usage: write_until_killed.py DIRECTORY NUM_KILLS SEED. Prints one JSON object; exits 1 at the first failure.
A separate program, so that only this code has to survive the forks.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.events.history import Position


def state_of(epoch: int) -> TrainingState:
    """A state in which every number depends on the epoch, and so does its size."""
    arrays = {f"weights/layer_{i}": np.full((997 + epoch % 7, 3), epoch, np.int64) for i in range(12)}
    return TrainingState("dnn", epoch, Position(epoch), (), arrays, "data")


def write_on(directory: Path, first_epoch: int, acknowledge: int) -> None:
    epoch = first_epoch
    while True:
        write_checkpoint(directory, state_of(epoch))
        os.write(acknowledge, epoch.to_bytes(4, "little"))
        epoch += 1


def acknowledged_epoch(pipe: int) -> int:
    """The last whole number in the pipe, 0 if there is none."""
    data = b""
    while piece := os.read(pipe, 1 << 16):
        data += piece
    return int.from_bytes(data[-4:], "little") if data else 0


def longest_wait_s() -> float:
    """Time for a few writes on this machine as busy as it is; also loads what the first write needs."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        for epoch in range(1, 6):
            write_checkpoint(scratch, state_of(epoch))
        return max(0.02, time.monotonic() - began)


def main() -> None:
    directory, num_kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    wait_s = longest_wait_s()
    written = num_warned = num_aside = 0
    for _ in range(num_kills):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            write_on(directory, written + 1, write_end)
        os.close(write_end)
        time.sleep(rng.uniform(0.0, wait_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        acknowledged = max(written, acknowledged_epoch(read_end))
        os.close(read_end)
        num_aside += (directory / "checkpoint.h5.tmp").exists()
        state, warnings = read_checkpoint(directory)
        num_warned += bool(warnings)
        written = 0 if state is None else state.epoch
        whole = state is None or all((array == state.epoch).all() for array in state.arrays.values())
        if not whole or not acknowledged <= written <= acknowledged + 1:
            sys.exit(f"acknowledged epoch {acknowledged}, read {written}, whole {whole}: {warnings}")
    print(json.dumps({"epochs": written, "warned": num_warned, "aside": num_aside}))


if __name__ == "__main__":
    main()
