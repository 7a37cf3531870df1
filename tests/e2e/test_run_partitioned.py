"""Partitioned data over real ranks: several nodes, stops and kills, and what is refused.

tests/unit/runtime/whole_runs tests the rest in one process.
"""

from __future__ import annotations

import re
import signal
from itertools import chain

import numpy as np
import pytest

from hpcbal.data.split import split_ids

pytestmark = pytest.mark.e2e

NUM_SAMPLES, NUM_TRAIN, NUM_RANKS = 120, 96, 3
SEED, VALIDATION_FRACTION = 5, 0.2  # of the lab, and the default


def partitioned(**data: object) -> dict[str, object]:
    """The only DNN on three slots; the first slot gets four samples of six."""
    return {
        "data": {"dataset": "toys:points", "access": "partitioned", "max_traversal_gap": 1, **data},
        "dnns": [{"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": 6}}],
        "backend": {
            "name": "emulated",
            "precision": "float64",
            "rates": {"a": {1: 400, 2: 780, 3: 1100}},
            "workers": [{"speed": 2.0}, {"speed": 0.5}, {"speed": 0.5}],
        },
        "balance": {"policy": "fixed", "shares": [4, 1, 1]},
    }


def moving(max_epochs: int) -> dict[str, object]:
    """The only DNN on three slots that are slow in turn, and whose parts follow their speeds."""
    sections = partitioned(max_traversal_gap=0.05)
    sections["dnns"][0] |= {"stop": {"max_epochs": max_epochs}, "args": {"trouble": "turns", "pace_s": 0.001}}
    sections["backend"]["workers"] = []
    sections["balance"] = {"policy": "lb-bsp-cpu", "predictor": "memoryless"}
    return sections


def parts_of(lab, *, killed: bool = False) -> tuple[list[int], np.ndarray]:
    """Sizes of the parts in the checkpoint, and its owners."""
    arrays = lab.outcome(killed=killed)["a"][1]
    owner = arrays["partition/owner"]
    assert len(arrays["partition/drawn"]) == owner.max() + 1
    return np.bincount(owner[owner >= 0]).tolist(), owner


def test_parts_lie_on_several_nodes(lab):
    """One slot on each; the preprocessors of all nodes see that no rank reads their stream."""
    sections = partitioned()
    sections["backend"]["workers"] = [{"speed": 2.0}, {"speed": 0.5}]
    sections["balance"]["shares"] = [3, 1]
    lab.configure(**sections)
    cut = ["--set", "slots.per_node=1", "--set", "slots.ranks_per_node=3"]
    done = lab.run("run", "run.yaml", *cut, num_ranks=6)
    assert done.code == 0, done
    assert len(lab.events("run-started")[0].nodes) == 2
    assert parts_of(lab)[0] == [72, 24]


LEDGER_OF_IDS = """

def log_sample(what, sample_id):
    start, rank = os.environ["HPCBAL_TEST_TOKEN"].rpartition(":")[2], os.environ["OMPI_COMM_WORLD_RANK"]
    with open(f"ids-{start}-{rank}", "a", encoding="utf-8") as file:
        file.write(f"{what} {sample_id}\\n")


def logged_read(self, sample_id, read=Points.read):
    log_sample("read", sample_id)
    return read(self, sample_id)


def logged_put(self, sample_id, raw, label, put=HeldSamples.put):
    put(self, sample_id, raw, label)
    log_sample("put", sample_id)


def logged_drop(self, sample_id, drop=HeldSamples.drop):
    if sample_id in self:
        log_sample("drop", sample_id)
    drop(self, sample_id)


Points.read, HeldSamples.put, HeldSamples.drop = logged_read, logged_put, logged_drop
"""


def log_ids(lab) -> None:
    """Let every rank write down which samples it reads, and which come into its memory and leave it."""
    toys, imported = lab.folder / "toys.py", "from hpcbal.data.held_samples import HeldSamples\n"
    toys.write_text(imported + toys.read_text(encoding="utf-8") + LEDGER_OF_IDS, encoding="utf-8")


def ids_of(lab, start: int) -> tuple[list[list[int]], list[list[int]]]:
    """Ids that each trainer (ranks 2 to 4) read in a start, ascending, and those that it held at its end."""
    all_read, all_held = [], []
    for rank in range(2, 2 + NUM_RANKS):
        read, held = [], []
        for line in (lab.folder / f"ids-{start}-{rank}").read_text(encoding="utf-8").splitlines():
            what, sample_id = line.split()
            if what == "drop":
                held.remove(int(sample_id))
            else:
                (read if what == "read" else held).append(int(sample_id))
        all_read.append(sorted(read))
        all_held.append(sorted(held))
    return all_read, all_held


def ids_of_parts(owner: np.ndarray) -> list[list[int]]:
    """Return the samples that each slot should hold: its part, and every third validation sample."""
    train, validation = split_ids(range(NUM_SAMPLES), SEED, VALIDATION_FRACTION)
    return [
        sorted([*train[owner == rank].tolist(), *validation[rank::NUM_RANKS].tolist()])
        for rank in range(NUM_RANKS)
    ]


def test_stops_and_kills_amid_migrations_lose_no_sample(lab):
    """Each slot in turn is slow, and samples follow; what is really read and held is what was written down.

    A dead rank blocks no other, though samples travel to or from it nearly all the time.
    """
    lab.configure(**moving(max_epochs=40))  # so many that none of the ends comes too late
    log_ids(lab)
    known, kept = 0, None
    for start, end in enumerate(("TERM", "KILL", None), 1):
        running = lab.start()
        if end is not None:
            wanted = known + 8
            running.until(lambda wanted=wanted: len(lab.events("epoch-done")) >= wanted, f"epoch {wanted}")
        if end == "TERM":
            running.process.terminate()
        elif end == "KILL":
            running.signal_rank(3, signal.SIGKILL)
        done = running.wait()
        assert done.code == {"TERM": 75, "KILL": 1, None: 0}[end], done
        epochs = lab.events("epoch-done")
        assert epochs[-1].facts.partition.migrations > 1  # of this start
        known = len(epochs)
        read, held = ids_of(lab, start)
        assert sorted(chain.from_iterable(read)) == list(range(NUM_SAMPLES))
        assert kept is None or read == kept
        sizes, owner = parts_of(lab, killed=end is not None)
        assert (len(sizes), sum(sizes), owner.min()) == (NUM_RANKS, NUM_TRAIN, 0)
        kept = ids_of_parts(owner)
        if end != "KILL":  # whose ranks died at moments of their own
            assert held == kept
    epochs = lab.events("epoch-done")
    assert epochs[-1].facts.num_trained == NUM_TRAIN
    assert [entry[0] for entry in lab.outcome()["a"][0]] == list(range(1, 41))


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"dnns": [{"name": n, "model": "toys:toy"} for n in "ab"]}, "got 'partitioned' for 2 DNNs"),
        (
            {"schedule": {"paradigm": "local"}},
            "got 'local', allowed: auto or global with data.access 'partitioned'",
        ),
    ],
)
def test_what_partitioned_data_is_not_for_is_refused(lab, change, reported):
    sections = {**partitioned(), **change}
    sections["backend"]["rates"]["b"] = {1: 400}
    if "dnns" not in change:
        del sections["backend"]["rates"]["b"]
    lab.configure(**sections)
    for done in (lab.run_here("validate", "run.yaml"), lab.run_alone("run", "run.yaml")):
        assert done.code == 2, done
        assert re.search(re.escape(reported), done.err), done


def test_more_slots_than_a_step_has_samples_are_refused(lab):
    """Some part would never be drawn from. The file alone shows this for one node."""
    sections = partitioned()
    sections["dnns"][0]["batch_size"] = 2
    sections["balance"] = {"policy": "even"}
    lab.configure(**sections)
    reported = "batch_size: got 2, allowed: at least 3 with data.access 'partitioned'"
    done = lab.run_here("validate", "run.yaml")
    assert done.code == 2, done
    assert re.search(rf"run.yaml:\d+: dnns.0.{reported}", done.err), done
    cut = ["--set", "slots.per_node=1", "--set", "slots.ranks_per_node=3"]
    assert lab.run_here("validate", "run.yaml", *cut).code == 0
