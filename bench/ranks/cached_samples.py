"""Ranks of bench_cache.py: consumers of the same JPEGs; each reads every sample once in a pass.

Arguments: one JSON object, see `Task`. Rank 0 prints one: seconds of each pass, CPU seconds of all ranks
together, without imports, and what the mode knows beyond that.

- `hpcbal`: rank 0 is the preprocessor, the others read the shared stream and copy their batches.
- `copies`: each rank copies batches at random places of an array that all share; rank 0 stands for what the
  preprocessor copies, and is not counted.
- `tf-cache`: each rank has a `tf.data` pipeline with `.cache()`.
- `tf-service`: rank 0 is dispatcher and worker of TensorFlow's data service, and decodes once (`.cache()`);
  the others read from it with a cross-trainer cache.
- `torch`: each rank has a PyTorch `DataLoader` that decodes with Pillow.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from mpi4py import MPI

BATCH = 64
RING_BATCHES = 8
CACHE_BYTES = 2**33
Passes = Callable[[], list[float]]


@dataclass(frozen=True)
class Task:
    """The work of the ranks.

    Attributes:
        mode: see above.
        folder: files `*.jpg`.
        num_samples: sample i is file i modulo their number, but is decoded and kept on its own.
        size: height and width of a sample.
        passes: how often each consumer wants all samples.
    """

    mode: str
    folder: str
    num_samples: int
    size: int
    passes: int

    def files(self) -> list[bytes]:
        files = [path.read_bytes() for path in sorted(Path(self.folder).glob("*.jpg"))]
        return [files[number % len(files)] for number in range(self.num_samples)]

    def batches(self) -> list[tuple[int, int]]:
        return [(first, min(first + BATCH, self.num_samples)) for first in range(0, self.num_samples, BATCH)]


class Files:
    """A dataset of encoded images in memory."""

    num_classes = 2
    sample_spec = None

    def __init__(self, files: list[bytes]) -> None:
        from hpcbal.data import LabelSpec

        self.label_spec = LabelSpec()
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def read(self, sample_id: int) -> tuple[bytes, int]:
        return self._files[sample_id], sample_id % 2

    def describe(self, sample_id: int) -> str:
        return f"file {sample_id}"


def timed(passes: int, one_pass: Callable[[int], object]) -> list[float]:
    """Seconds of each pass."""
    seconds = []
    for number in range(passes):
        began = time.perf_counter()
        one_pass(number)
        seconds.append(time.perf_counter() - began)
    return seconds


def hpcbal(task: Task, world: MPI.Intracomm) -> tuple[Passes, Callable[[], dict[str, float]]]:
    from hpcbal.comm.backoff import Backoff
    from hpcbal.config.schema.ensemble import DataplaneConfig
    from hpcbal.data import PreprocessedSamples
    from hpcbal.data.operations.decode import Decode
    from hpcbal.data.operations.geometry import Resize
    from hpcbal.dataplane.cache import SampleCache
    from hpcbal.dataplane.cache_size import CacheNeed
    from hpcbal.dataplane.producer import NodeTopology, Producer
    from hpcbal.dataplane.reader import StreamReader
    from hpcbal.dataplane.replication import OneNode
    from hpcbal.dataplane.ring import NodeRing
    from hpcbal.dataplane.stream import StreamPlan, StreamSpec
    from hpcbal.events.history import Position

    resize = Resize(height=task.size, width=task.size)
    source = PreprocessedSamples(Files(task.files()), [Decode(), resize], 0, 0.0)
    ring_bytes = RING_BATCHES * BATCH * (task.size**2 * 3 + 64)
    spec = StreamSpec.of_source(source, DataplaneConfig(ring_bytes=ring_bytes, block_samples=BATCH))
    ring = NodeRing.create(world, spec, world.size - 1, 1)
    plan = StreamPlan(1, 0, 0, (0,), (0,))
    alone = cast(MPI.Intracomm, world.Split(world.rank > 0))
    if world.rank == 0:
        need = CacheNeed.of(source)
        assert need is not None
        source.cache = cache = SampleCache.create(alone, need, CACHE_BYTES, ring.num_bytes)
        assert cache is not None
        producer = Producer(ring, OneNode(0), NodeTopology((0,) * world.size, (0,)), source, 0)

        def produce() -> list[float]:
            world.Barrier()  # all cursors are there
            producer.start(plan)
            left, backoff = world.Ibarrier(), Backoff.idle()
            while not left.Test():
                if producer.step():
                    backoff.reset()
                else:
                    backoff.wait()
            producer.stop()
            while producer.active:
                producer.step()
            return []

        def known() -> dict[str, float]:
            return {
                "decoded": producer.reads - cache.num_hits,
                "cache_bytes": pss_of(cache._memory.ctypes.data),
                "data_bytes": task.num_samples * task.size**2 * 3,
            }

        return produce, known
    reader = StreamReader(ring, world.rank - 1)
    out = np.empty((BATCH, task.size, task.size, 3), np.uint8)

    def consume() -> list[float]:
        reader.begin(plan, Position(0))
        world.Barrier()

        def one_pass(number: int) -> None:
            for first, last in task.batches():
                reader.read(number, first, last, out)
                reader.release(number, last)

        seconds = timed(task.passes, one_pass)
        reader.end()
        request, backoff = world.Ibarrier(), Backoff.idle()
        while not request.Test():
            backoff.wait()
        return seconds

    return consume, dict


def pss_of(address: int) -> float:
    """Bytes of the mapping at an address that are in memory; of shared pages, this process's part."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, last = (int(word, 16) for word in words[0].split("-"))
            inside = first <= address < last
        elif inside and words[0] == "Pss:":
            return 1024.0 * int(words[1])
    raise RuntimeError("no mapping at this address")


def copies(task: Task, world: MPI.Intracomm) -> tuple[Passes, Callable[[], dict[str, float]]]:
    num_bytes = task.num_samples * task.size**2 * 3
    window = MPI.Win.Allocate_shared(num_bytes if world.rank == 0 else 0, 1, MPI.INFO_NULL, world)
    memory = np.frombuffer(cast(Any, window.Shared_query(0)[0]), np.uint8)[:num_bytes]
    data = memory.reshape(task.num_samples, task.size, task.size, 3)
    if world.rank == 0:
        data[:] = 1
    world.Barrier()
    out = np.empty((BATCH, task.size, task.size, 3), np.uint8)
    rng = np.random.default_rng(world.rank)

    def one_pass(number: int) -> None:
        order = rng.permutation(task.num_samples)
        for first, last in task.batches():
            np.take(data, order[first:last], axis=0, out=out[: last - first], mode="clip")

    return lambda: timed(task.passes, one_pass), dict


def tf_parts() -> Any:
    os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["CUDA_VISIBLE_DEVICES"] = "3", "-1"
    import tensorflow as tf

    return tf


def tf_samples(tf: Any, task: Task) -> Any:
    def decoded(file: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(file, 3), (task.size, task.size), antialias=True)
        return tf.cast(image, tf.uint8)

    return tf.data.Dataset.from_tensor_slices(task.files()).map(decoded)


def tf_cache(task: Task, world: MPI.Intracomm) -> tuple[Passes, Callable[[], dict[str, float]]]:
    tf = tf_parts()
    batches = tf_samples(tf, task).cache().batch(BATCH).prefetch(2)
    before = resident_bytes()

    def one_pass(number: int) -> None:
        for _ in batches:
            pass

    return lambda: timed(task.passes, one_pass), lambda: {"added_bytes": resident_bytes() - before}


def resident_bytes() -> float:
    return float(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


def tf_service(task: Task, world: MPI.Intracomm) -> tuple[Passes, Callable[[], dict[str, float]]]:
    tf = tf_parts()
    service = tf.data.experimental.service
    address, servers = "", []
    if world.rank == 0:
        dispatcher = service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        servers = [dispatcher, service.WorkerServer(service.WorkerConfig(dispatcher_address=address))]
    address = world.bcast(address)
    batches = tf_samples(tf, task).cache().repeat().batch(BATCH)
    if world.rank == 0:

        def serve() -> list[float]:
            request = world.Ibarrier()
            while not request.Test():
                time.sleep(0.01)
            servers.clear()
            return []

        return serve, dict
    shared = batches.apply(
        service.distribute(
            service.ShardingPolicy.OFF,
            f"grpc://{address}",
            job_name="shared",
            cross_trainer_cache=service.CrossTrainerCache(trainer_id=f"trainer {world.rank}"),
        )
    )
    num_batches = len(task.batches())

    def consume() -> list[float]:
        stream: Iterator[Any] = iter(shared)

        def one_pass(number: int) -> None:
            for _ in range(num_batches):
                next(stream)

        seconds = timed(task.passes, one_pass)
        world.Ibarrier().Wait()
        return seconds

    return consume, dict


def torch_loaders(task: Task, world: MPI.Intracomm) -> tuple[Passes, Callable[[], dict[str, float]]]:
    import torch
    from PIL import Image

    torch.set_num_threads(1)
    files = task.files()

    class Decoded(torch.utils.data.Dataset):  # type: ignore[misc, type-arg]
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, number: int) -> Any:
            image = Image.open(io.BytesIO(files[number]))
            image.draft("RGB", (task.size, task.size))
            resized = image.convert("RGB").resize((task.size, task.size), Image.Resampling.BILINEAR)
            return torch.from_numpy(np.array(resized))

    loader = torch.utils.data.DataLoader(Decoded(), batch_size=BATCH, shuffle=True)

    def one_pass(number: int) -> None:
        for _ in loader:
            pass

    return lambda: timed(task.passes, one_pass), dict


MODES = {
    "hpcbal": hpcbal,
    "copies": copies,
    "tf-cache": tf_cache,
    "tf-service": tf_service,
    "torch": torch_loaders,
}


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    world = MPI.COMM_WORLD
    play, known = MODES[task.mode](task, world)
    world.Barrier()
    cpu = time.process_time()
    seconds = play()
    cpu = time.process_time() - cpu
    gathered = world.gather((seconds, cpu, known()))
    if gathered is not None:
        facts: dict[str, Any] = {"task": asdict(task), "cpu_s": sum(cpu for _, cpu, _ in gathered)}
        facts["seconds"] = [seconds for seconds, _, _ in gathered if seconds]
        for name in gathered[-1][2] | gathered[0][2]:
            facts[name] = sum(known.get(name, 0.0) for _, _, known in gathered)
        print(json.dumps(facts), flush=True)
    MPI.Finalize()
    sys.stdout.flush()
    os._exit(0)  # threads of TensorFlow's service do not end by themselves


if __name__ == "__main__":
    main()
