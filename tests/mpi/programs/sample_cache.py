"""Preprocessors of one node add samples to a cache and look them up, each in its own order, at the same
time.

Arguments: JSON of the number of samples, passes, the share of the need that the cache has, and whether
samples differ in size. Rank 0 prints JSON: samples added and found by all ranks together, what the table
holds, and its size and hit rate.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.errors import InputError

LABEL = LabelSpec((2,), "int32")


def sample_of(sample_id: int, *, differ: bool) -> np.ndarray:
    rows = 1 + sample_id % 11 if differ else 6
    return (sample_id + np.arange(rows * 7, dtype=np.float32)).reshape(rows, 7)


def refused_beyond_the_node(comm: MPI.Intracomm, need: CacheNeed) -> None:
    """All ranks get the same error, and no window is left half made."""
    need = replace(need, num_samples=2**50)
    try:
        SampleCache.create(comm, need, 2**50, ring_bytes=1000)
    except InputError as error:
        text = str(error)
    assert len(set(comm.allgather(text))) == 1
    assert "not enough memory for the cache of decoded samples of this node, 1125899906842624 bytes" in text
    assert "1000 of them for the ring; lower dataplane.cache_bytes" in text


def main() -> None:
    num_samples, passes, share, differ = json.loads(sys.argv[1])
    comm = MPI.COMM_WORLD
    spec = SampleSpec.of((None, 7) if differ else (6, 7), "float32", 11 * 7 * 4)
    need = CacheNeed(num_samples, num_samples, spec, LABEL, 6 * 7 * 4.0)
    refused_beyond_the_node(comm, need)
    assert SampleCache.create(comm, need, need.least_bytes - 1, 0) is None
    cache = SampleCache.create(comm, need, int(share * need.whole_bytes(comm.size)), ring_bytes=0)
    assert cache is not None
    rng, num_added = np.random.default_rng(comm.rank), 0
    for _ in range(passes):  # every rank makes every sample that is not there yet
        for sample_id in rng.permutation(num_samples).tolist():
            kept = cache.get(sample_id)
            expected = sample_of(sample_id, differ=differ)
            if kept is None:
                cache.put(sample_id, expected, np.array([sample_id, -sample_id], np.int32))
                num_added += cache.has(sample_id)
            else:
                np.testing.assert_array_equal(kept[0], expected)
                np.testing.assert_array_equal(kept[1], [sample_id, -sample_id])
                assert not kept[0].flags.writeable
        comm.Barrier()
    counts = comm.allreduce(np.array([num_added, cache.num_hits]))
    held = sum(cache.get(sample_id) is not None for sample_id in range(num_samples))
    if comm.rank == 0:
        num_bytes = cache.num_bytes
        print(json.dumps([*counts.tolist(), held, num_bytes, need.hit_rate(num_bytes)]))
    cache.close()
    cache.close()


if __name__ == "__main__":
    main()
