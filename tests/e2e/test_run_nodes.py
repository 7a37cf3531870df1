"""How many nodes and preprocessors there are changes no weight, and no sample is preprocessed per node."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

NUM_SAMPLES = 120


def check_shared(lab) -> None:
    """Once per pass; at the end of a round what was made ahead is given up, at most a pass here."""
    passes = len(lab.events("pass-started")) + len(lab.events("round-started"))
    ahead = len(lab.events("round-started"))
    reads = sum(path.stat().st_size for path in lab.folder.glob("reads-*"))
    assert passes * NUM_SAMPLES <= reads <= (passes + ahead) * NUM_SAMPLES


def test_two_preprocessors_give_the_same_weights(lab, undisturbed, same_outcome):
    done = lab.run("run", "run.yaml", "--set", "slots.preprocessors_per_node=2")
    assert done.code == 0, done
    same_outcome(lab.outcome(), undisturbed)
    check_shared(lab)
    assert len(list(lab.folder.glob("reads-*"))) == 2


def test_three_nodes_give_the_same_weights_as_one(lab, undisturbed, same_outcome):
    """One slot on each; the spare ranks of the other nodes preprocess too."""
    cut = ["--set", "slots.per_node=1", "--set", "slots.ranks_per_node=3"]
    done = lab.run("run", "run.yaml", *cut, num_ranks=9)
    assert done.code == 0, done
    assert [node["num_gpus"] for node in lab.events("run-started")[0]["nodes"]] == [1, 1, 1]
    same_outcome(lab.outcome(), undisturbed)
    check_shared(lab)
