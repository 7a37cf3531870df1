"""How many nodes and preprocessors there are changes no weight; no sample is made or read for each node."""

from __future__ import annotations

import pytest

from hpcbal.dataplane.producer import NUM_PRIVATE_CELLS

pytestmark = pytest.mark.e2e

NUM_SAMPLES = 120
BLOCK_SAMPLES = 8  # as in conftest.py


def check_shared(lab, num_producers: int) -> None:
    """Once per pass; at the end of a round what was made ahead is given up.

    That is at most what the ring holds, which is a pass here, and what each producer holds beside it: its
    private blocks and the one it makes.
    """
    rounds = len(lab.events("round-started"))
    passes = len(lab.events("pass-started")) + rounds
    made = lab.events("run-finished")[-1].num_preprocessed
    ahead = NUM_SAMPLES + num_producers * (NUM_PRIVATE_CELLS + 1) * BLOCK_SAMPLES
    assert passes * NUM_SAMPLES <= made <= passes * NUM_SAMPLES + rounds * ahead


def test_three_nodes_give_the_same_weights_as_one(lab, undisturbed, same_outcome):
    """One slot on each; the spare ranks of the other nodes preprocess too.

    The cache of a node holds no more than the samples once, and nodes fetch them from each other.
    """
    cut = ["--set", "slots.per_node=1", "--set", "slots.ranks_per_node=3"]
    cut += ["--set", "dataplane.cache_bytes=16KiB"]
    done = lab.run("run", "run.yaml", *cut, num_ranks=9)
    assert done.code == 0, done
    assert [node.num_slots for node in lab.events("run-started")[0].nodes] == [1, 1, 1]
    same_outcome(lab.outcome(), undisturbed)
    check_shared(lab, num_producers=5)
    (last,) = lab.events("run-finished")
    assert 0 < last.num_fetched < last.num_from_cache
    assert (
        f"found {last.num_from_cache} in the cache, {last.num_fetched} of them in that of another" in done.out
    )
