"""Preprocessors of one node add samples to a cache and look them up, each in its own order, at the same
time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from cases import try_cases
from mpi4py import MPI

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.errors import InputError

NUM_SAMPLES, PASSES = 400, 4
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


def share_cache(comm: MPI.Intracomm, share: float, *, differ: bool) -> None:
    """Each rank finds what any has added, whole.

    Args:
        share: of the need, that the cache has.
        differ: whether samples differ in size.
    """
    spec = SampleSpec.of((None, 7) if differ else (6, 7), "float32", 11 * 7 * 4)
    need = CacheNeed(NUM_SAMPLES, NUM_SAMPLES, spec, LABEL, 6 * 7 * 4.0)
    refused_beyond_the_node(comm, need)
    assert SampleCache.create(comm, need, need.least_bytes - 1, 0) is None
    cache = SampleCache.create(comm, need, int(share * need.whole_bytes(comm.size)), ring_bytes=0)
    assert cache is not None
    rng, num_added = np.random.default_rng(comm.rank), 0
    for _ in range(PASSES):  # every rank makes every sample that is not there yet
        for sample_id in rng.permutation(NUM_SAMPLES).tolist():
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
    added, found = comm.allreduce(np.array([num_added, cache.num_hits])).tolist()
    held = sum(cache.get(sample_id) is not None for sample_id in range(NUM_SAMPLES))
    rate = need.hit_rate(cache.num_bytes)
    cache.close()
    cache.close()
    if share < 1.0:  # it keeps what it has
        assert 0.2 < rate < 0.6
        assert held <= rate * NUM_SAMPLES
        assert held <= added, "two ranks may add one at the same time, and both count it"
        assert found >= comm.size * (PASSES - 2) * held
        return
    assert rate == 1.0
    assert NUM_SAMPLES * 0.9 <= held <= NUM_SAMPLES
    if not differ and added == held:  # nobody made what another was just making
        assert held == NUM_SAMPLES
    # From the second pass on, each rank finds all that is held.
    assert found >= comm.size * (PASSES - 1) * held * 0.9


if __name__ == "__main__":
    try_cases(
        (name, num_ranks, partial(share_cache, share=share, differ=differ))
        for num_ranks in (2, 3)
        for name, share, differ in (("whole", 1.0, False), ("ragged", 1.0, True), ("full", 0.4, False))
    )
