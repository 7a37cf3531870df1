"""Ranks of bench_links.py: two of three send to the first at the same moment; when has each message arrived?

Rank 0 prints one JSON object: medians of the ends over the time of one message alone.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from mpi4py import MPI

START_S = 0.01
PAUSE_S = 1e-4
"""Between looks: three ranks that spin would share two cores."""


def arrivals(world: MPI.Intracomm, sizes: tuple[int, ...]) -> list[float] | None:
    """Seconds from the common start until each sender's message has arrived at rank 0."""
    world.Barrier()
    start_s: float = world.bcast(time.monotonic() + START_S)
    if world.rank > len(sizes):
        return None
    if world.rank:
        message = np.zeros(sizes[world.rank - 1], np.uint8)
        time.sleep(max(0.0, start_s - time.monotonic()))
        request = world.Isend(message, 0)
        while not request.Test():
            time.sleep(PAUSE_S)
        return None
    buffers = [np.empty(size, np.uint8) for size in sizes]
    requests = dict(enumerate(world.Irecv(buffer, place + 1) for place, buffer in enumerate(buffers)))
    ends = [0.0] * len(sizes)
    while requests:
        for place, request in list(requests.items()):
            if request.Test():
                ends[place] = time.monotonic() - start_s
                del requests[place]
        time.sleep(PAUSE_S)
    return ends


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    args = parser.parse_args()
    world, size = MPI.COMM_WORLD, args.bytes
    cases = {"alone": (size,), "equal": (size, size), "long_and_short": (4 * size, size)}
    found = {name: [arrivals(world, sizes) for _ in range(args.repeats)] for name, sizes in cases.items()}
    if world.rank == 0:
        ends = {name: np.array(each, float) for name, each in found.items()}
        alone_s = float(np.median(ends["alone"]))
        equal, unlike = np.sort(ends["equal"], axis=1) / alone_s, ends["long_and_short"] / alone_s
        first, last = np.median(equal, axis=0).tolist()
        long_end, short_end = np.median(unlike, axis=0).tolist()
        names = ("alone_s", "equal_first", "equal_last", "long_end", "short_end")
        print(json.dumps(dict(zip(names, (alone_s, first, last, long_end, short_end), strict=True))))


if __name__ == "__main__":
    main()
