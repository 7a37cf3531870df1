"""The peer of bench_dataplane.py: TensorFlow's data service with its cross-trainer cache.

It serves one prepared block again and again, uncompressed, to consumer processes that share one job. It reads
commands from stdin: "run N" makes every consumer take N blocks and prints the blocks per second of each;
"read N" also makes it read every byte of each tensor's buffer; the end of stdin ends all processes. Before
each measurement, every consumer takes blocks that are not timed: the service fills its clients' buffers
between two measurements, and blocks from a buffer cost nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # keep its log lines out of the table

import numpy as np
import tensorflow as tf
from ranks.dataplane_in_place import read_all

WARM_UP_BLOCKS = 10
DRAIN_S = 2.0  # more than it takes to empty a buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs="+", required=True, help="shape of a block, samples first")
    parser.add_argument("--num-consumers", type=int, default=4)
    parser.add_argument("--consume", metavar="ADDRESS", help="be a consumer of this dispatcher")
    parser.add_argument("--index", type=int, default=0)
    args = parser.parse_args()
    if args.consume:
        consume(args.consume, args.index, args.shape)
    else:
        serve(args.shape, args.num_consumers)


def serve(shape: list[int], num_consumers: int) -> None:
    """Dispatcher and worker in this process, consumers in others."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    command = [sys.executable, __file__, "--shape", *map(str, shape), "--consume", address, "--index"]
    consumers = [
        subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(num_consumers)
    ]
    for consumer in consumers:
        _answer(consumer)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        num_blocks = int(line.split()[1])
        for consumer in consumers:
            assert consumer.stdin is not None
            consumer.stdin.write(line)
            consumer.stdin.flush()
        slowest_s = max(_answer(consumer)["seconds"] for consumer in consumers)
        print(json.dumps({"blocks_per_s": num_blocks / slowest_s}), flush=True)
    for consumer in consumers:
        assert consumer.stdin is not None
        consumer.stdin.close()
        consumer.wait()
    del worker, dispatcher


def _answer(consumer: subprocess.Popen[str]) -> dict:
    assert consumer.stdout is not None
    line = consumer.stdout.readline()
    if not line:
        raise RuntimeError(f"a consumer of the data service ended with exit code {consumer.wait()}")
    return json.loads(line)


def consume(address: str, index: int, shape: list[int]) -> None:
    """Take blocks as one trainer of the shared job; each element is a tensor of this process."""
    block = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    dataset = tf.data.Dataset.from_tensors(block).repeat()
    service = tf.data.experimental.service
    dataset = dataset.apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.OFF,
            service=f"grpc://{address}",
            job_name="shared",
            compression=None,
            cross_trainer_cache=service.CrossTrainerCache(trainer_id=f"trainer-{index}"),
        )
    )
    blocks = iter(dataset)
    for _ in range(WARM_UP_BLOCKS):
        assert next(blocks).shape == tuple(shape)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, num_blocks = line.split()
        drained_s = time.perf_counter() + DRAIN_S
        while time.perf_counter() < drained_s:
            next(blocks)
        began = time.perf_counter()
        for _ in range(int(num_blocks)):
            tensor = next(blocks)
            if command == "read":
                read_all(np.asarray(memoryview(tensor)))
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
