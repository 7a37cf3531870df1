"""Ranks of bench_sharing.py: preprocessors and trainers on the real data plane, without training.

bench_sharing.py starts them under mpirun with 8 ranks. Each measurement splits them into streams of one
preprocessor and some trainers. Rank 0 prints one JSON object with the CPU seconds of all preprocessors.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import cast

from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.data import SampleSource, build_operations, image_folder
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.values import Position

NUM_RANKS = 8
BLOCK_SAMPLES = 8
NUM_SLOTS = 3
"""A short ring, because blocks that are left in it at the end were made in vain and still count."""

STREAMS: Mapping[str, tuple[int, int]] = {"alone": (1, 1), "shared": (1, 4), "unshared": (4, 1)}
"""Number of streams, and trainers of each."""


def make_source(images: str, side: int) -> SampleSource:
    """The usual preprocessing of photographs: decode, resize, crop, mirror, normalise."""
    larger = round(side * 232 / 224)
    operations = build_operations(
        [
            ("decode", {"mode": "rgb"}),
            ("resize", {"height": larger, "width": larger}),
            ("random_crop", {"height": side, "width": side}),
            ("random_flip", {}),
            ("normalize", {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}),
        ]
    )
    return SampleSource(image_folder(images), operations, seed=0, validation_fraction=0.2)


def make_spec(source: SampleSource) -> StreamSpec:
    """A stream whose ring has `NUM_SLOTS` slots."""
    sizes = (source.num_train, source.num_positions, BLOCK_SAMPLES, source.sample_spec, source.label_spec)
    slot_bytes = StreamSpec(*sizes, ring_bytes=2**40).slot_bytes
    return StreamSpec(*sizes, ring_bytes=NUM_SLOTS * slot_bytes)


def measure(
    world: MPI.Intracomm, source: SampleSource, num_streams: int, num_trainers: int, passes: int
) -> list[float]:
    """CPU seconds and samples, summed over the preprocessors, and wall seconds."""
    stream, place = divmod(world.rank, 1 + num_trainers)
    is_used = stream < num_streams
    group = cast(MPI.Intracomm, world.Split(stream if is_used else MPI.UNDEFINED, place))
    totals = [0.0, 0.0]
    began_s = time.perf_counter()
    if is_used:
        with NodeRing.create(group, make_spec(source), num_trainers, 1) as ring:
            if place == 0:
                totals = produce(group, ring, source)
            else:
                consume(group, ring, place - 1, passes)
        group.Free()
    wait_for_all(world)
    wall_s = time.perf_counter() - began_s
    return [*(world.allreduce(total) for total in totals), world.allreduce(wall_s, MPI.MAX)]


def produce(group: MPI.Comm, ring: NodeRing, source: SampleSource) -> list[float]:
    """Make blocks until all trainers are served; returns CPU seconds, waiting included, and samples."""
    producer = Producer(ring, group, NodeTopology((0,) * group.size, (0,)), source, 0)
    group.Barrier()
    began_s = time.process_time()
    producer.start(StreamPlan(1, 0, 0, (0,), (0,)))
    finished, backoff = group.Ibarrier(), Backoff()
    while not finished.Test():
        if producer.step():
            backoff.reset()
        else:
            backoff.wait()
    producer.stop()
    while producer.active:
        producer.step()
    assert not producer.take_bad(), "the benchmark's own images are broken"
    return [time.process_time() - began_s, float(producer.samples_made)]


def consume(group: MPI.Comm, ring: NodeRing, index: int, passes: int) -> None:
    """Copy every block of some passes out of the ring."""
    reader, spec = StreamReader(ring, index), ring.spec
    reader.begin(StreamPlan(1, 0, 0, (0,), (0,)), Position(0))
    buffer = spec.empty_batch(spec.block_samples)
    group.Barrier()
    for pass_index in range(passes):
        for start in range(0, spec.num_positions, spec.block_samples):
            stop = min(start + spec.block_samples, spec.num_positions)
            batch = reader.read(pass_index, start, stop, out=buffer)
            assert len(batch) == stop - start, "a sample is missing"
            reader.release(pass_index, stop)
    reader.end()
    wait_for_all(group)


def wait_for_all(comm: MPI.Comm) -> None:
    """A barrier that leaves the cores to the ranks that still work."""
    finished, backoff = comm.Ibarrier(), Backoff(max_sleep_s=0.01)
    while not finished.Test():
        backoff.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    assert world.size == NUM_RANKS, f"started with {world.size} ranks, needs {NUM_RANKS}"
    source = make_source(args.images, args.side)
    source.sample(0, 0, training=True)  # costs of the first sample only (imports) are not measured
    rows: dict[str, list[list[float]]] = {name: [] for name in STREAMS}
    for _ in range(args.repeats):  # in turns, so that a busy moment of the machine affects all of them
        for name, (num_streams, num_trainers) in STREAMS.items():
            rows[name].append(measure(world, source, num_streams, num_trainers, args.passes))
    if world.rank == 0:
        print(json.dumps({"num_positions": source.num_positions, **rows}))


if __name__ == "__main__":
    main()
