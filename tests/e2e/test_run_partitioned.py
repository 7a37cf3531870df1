"""Partitioned data in whole runs: samples move, stops and kills lose none, and what cannot be is refused."""

from __future__ import annotations

import re
import signal
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from hpcbal.data.split import split_ids

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "configs" / "partitioned.yaml"
NUM_SAMPLES, NUM_TRAIN, NUM_RANKS = 120, 96, 3
SEED, VALIDATION_FRACTION = 5, 0.2  # of the lab, and the default


def partitioned(**data: object) -> dict[str, object]:
    """The only DNN on three GPUs; the first GPU gets four samples of six."""
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
    """The only DNN on three GPUs that are slow in turn, and whose parts follow their speeds."""
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


HOLD = '''

def hold(mark, count):
    """Once the ledger has `mark` `count` times, wait until this start is asked to stop; then be slow."""
    while True:
        try:
            with open("out/ledger.jsonl", encoding="utf-8") as file:
                content = file.read()
        except FileNotFoundError:
            return
        if content.count(mark) < count:
            return
        if content.rfind('"suspend-requested"') > content.rfind('"run-started"'):
            time.sleep(0.5)  # so that no rank reaches the end before all know of the stop
            return
        time.sleep(0.01)
'''


def hold_at(lab, place: str, mark: str, count: int) -> Path:
    """Let runs into `out` wait at a place of toys.py until they are asked to stop, however slow the test is.

    Args:
        place: first line of a method.
        mark, count: they wait from the moment when the ledger holds `mark` so many times.

    Returns: a file; while it exists, no run waits.
    """
    toys, free = lab.folder / "toys.py", lab.folder / f"free-{place.split('(')[0]}"
    text, line = toys.read_text(encoding="utf-8"), f"    def {place}:\n"
    assert text.count(line) == 1
    held = f"{line}        if not os.path.exists({free.name!r}):\n            hold({mark!r}, {count})\n"
    toys.write_text(text.replace(line, held) + (HOLD if HOLD not in text else ""), encoding="utf-8")
    return free


def hold_training(lab, mark: str, count: int = 1) -> Path:
    return hold_at(lab, "loss_and_gradient(self, parameters, x, y)", mark, count)


def hold_reading(lab) -> Path:
    """As soon as the run has started; no sample is read before that but by those who open the data."""
    return hold_at(lab, "read(self, sample_id)", '"run-started"', 1)


def test_samples_move_to_the_gpu_that_takes_more(lab):
    lab.configure(**partitioned(partition="by_class"))
    done = lab.run()
    assert done.code == 0, done
    epochs = lab.events("epoch-done")
    assert [epoch.facts.num_trained for epoch in epochs] == [NUM_TRAIN] * 6
    facts = epochs[-1].facts.partition
    assert facts.sizes == (64, 16, 16)
    assert (facts.migrations, facts.moved) == (1, 32)
    assert facts.gap <= 1
    sizes, owner = parts_of(lab)
    assert (sizes, len(owner)) == ([64, 16, 16], NUM_TRAIN)
    assert epochs[-1].metrics["val_accuracy"] > 0.6
    assert len(lab.events("preprocessing-measured")) <= len(epochs)


def test_the_example_runs(lab):
    done = lab.run("run", str(EXAMPLE), "--set", f"output.dir={lab.out}", "--set", "dnns.0.stop.max_epochs=4")
    assert done.code == 0, done
    last = lab.events("epoch-done")[-1]
    assert last.facts.partition.migrations == 1
    assert last.metrics["val_accuracy"] > 0.9


def test_parts_lie_on_several_nodes(lab):
    """One GPU on each; the preprocessors of all nodes see that no rank reads their stream."""
    lab.configure(**partitioned())
    cut = ["--set", "slots.per_node=1", "--set", "slots.ranks_per_node=3"]
    done = lab.run("run", "run.yaml", *cut, num_ranks=9)
    assert done.code == 0, done
    assert len(lab.events("run-started")[0].nodes) == NUM_RANKS
    assert parts_of(lab)[0] == [64, 16, 16]


def test_without_migration_parts_stay(lab):
    lab.configure(**partitioned(max_traversal_gap=None, partition="contiguous"))
    done = lab.run()
    assert done.code == 0, done
    facts = lab.events("epoch-done")[-1].facts.partition
    assert (facts.sizes, facts.migrations, facts.gap) == ((32, 32, 32), 0, 9.0)
    assert parts_of(lab)[1].tolist() == np.repeat(range(NUM_RANKS), 32).tolist()


def goes_on_to_the_end_of(lab, whole):
    """The same command ends with the six epochs and the weights of an undisturbed run, to the last bit."""
    done = lab.run()
    assert done.code == 0, done
    history, arrays = lab.outcome()["a"]
    assert [entry[0] for entry in history] == [1, 2, 3, 4, 5, 6]
    assert arrays.keys() == whole[1].keys()
    for name, array in whole[1].items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("how", ["nothing", "TERM", "KILL"])
def test_runs_whose_samples_move_end_with_the_same_weights(lab, how):
    """Samples move after the first pass; a run is stopped in the second, which draws from the new parts."""
    sections = partitioned(partition="by_class")
    lab.configure(**sections, output={"dir": "whole"})
    lab.out = lab.folder / "whole"
    done = lab.run()
    assert done.code == 0, done
    whole = lab.outcome()["a"]
    assert lab.events("epoch-done")[1].facts.partition.migrations == 1
    lab.out = lab.folder / "out"
    lab.configure(**sections)
    if how != "nothing":
        free = hold_training(lab, '"epoch-done"', 1)
        running = lab.start()
        running.until(lambda: lab.events("epoch-done"), "epoch 1")
        if how == "TERM":
            running.process.terminate()
            assert running.wait().code == 75
        else:
            running.kill_all()
            running.wait()
        free.touch()
    goes_on_to_the_end_of(lab, whole)


def test_parts_that_have_moved_are_kept_over_a_stop(lab):
    lab.configure(**partitioned())
    free = hold_training(lab, '"migrations": 1')
    running = lab.start()
    running.until(lambda: any(e.facts.partition.migrations for e in lab.events("epoch-done")), "migration")
    running.process.terminate()
    assert running.wait().code == 75
    _, before = parts_of(lab)
    free.touch()
    done = lab.run()
    assert done.code == 0, done
    assert "a loads its data: 24 to 72 samples are read and kept on each of 3 GPUs" in done.out, done
    sizes, after = parts_of(lab)
    assert sizes == [64, 16, 16]
    assert after.tolist() == before.tolist()
    assert lab.events("epoch-done")[-1].facts.partition.migrations == 0  # of this start


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
    """What each GPU is to hold: its part, and every third of the validation samples."""
    train, validation = split_ids(range(NUM_SAMPLES), SEED, VALIDATION_FRACTION)
    return [
        sorted([*train[owner == rank].tolist(), *validation[rank::NUM_RANKS].tolist()])
        for rank in range(NUM_RANKS)
    ]


def test_stops_and_kills_amid_migrations_lose_no_sample(lab):
    """Each GPU in turn is slow, and samples follow; what is really read and held is what was written down."""
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
            running.kill_all()
        done = running.wait()
        assert end == "KILL" or done.code == (75 if end == "TERM" else 0), done
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
        ({"slots": {"per_node": 2}}, ""),
        (
            {"schedule": {"max_gpus_per_dnn": 2}, "balance": {"policy": "even"}},
            "the interrupted round is not resumed: a had more GPUs than schedule.max_gpus_per_dnn (2) and",
        ),
    ],
    ids=["other GPUs", "a lower limit"],
)
def test_other_gpus_get_parts_of_their_own(lab, change, reported):
    lab.configure(**partitioned())
    free = hold_training(lab, '"epoch-done"', 2)
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 2, "epoch 2")
    running.process.terminate()
    assert running.wait().code == 75
    free.touch()
    lab.configure(**{**partitioned(), **change})
    done = lab.run()
    assert done.code == 0, done
    sizes, _ = parts_of(lab)
    assert (len(sizes), sum(sizes)) == (2, NUM_TRAIN)
    logs = "".join(path.read_text() for path in (lab.out / "logs").glob("rank-*.log"))
    assert "the data had 3 parts and is dealt again to 2 GPUs" in logs
    assert reported in logs


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-cpu"])
def test_samples_follow_shares_that_are_decided_while_training(lab, policy):
    sections = partitioned(max_traversal_gap=0.5)
    sections["dnns"][0]["stop"] = {"max_epochs": 12}
    lab.configure(**{**sections, "balance": {"policy": policy}})
    done = lab.run()
    assert done.code == 0, done
    facts = lab.events("epoch-done")[-1].facts.partition
    assert facts.migrations >= 1
    sizes, _ = parts_of(lab)
    assert sizes[0] > 32 > max(sizes[1:])
    assert sum(sizes) == NUM_TRAIN


SLOW_PREPROCESSING = """

def preprocess_slowly(self, sample, rng, run=Pipeline.run):
    time.sleep(0.005)
    return run(self, sample, rng)


Pipeline.run = preprocess_slowly  # operations of one's own there are none
"""


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-cpu"])
def test_preprocessing_that_all_gpus_do_equally_slowly_evens_out_their_shares(lab, policy):
    """A sample takes 5 ms on any GPU before the first computes on it for 0.6 ms, or the others for 2.5 ms.

    Without the 5 ms the first GPU would get four times as much as the others. With them it is 1.3 times where
    one comes after the other, and nothing where samples are preprocessed meanwhile.
    """
    toys = lab.folder / "toys.py"
    imported = "from hpcbal.data.pipeline import Pipeline\n"
    toys.write_text(imported + toys.read_text(encoding="utf-8") + SLOW_PREPROCESSING, encoding="utf-8")
    sections = partitioned(max_traversal_gap=None)
    sections["dnns"][0]["stop"] = {"max_epochs": 8}
    sections["backend"]["rates"] = {"a": {1: 800, 2: 1560, 3: 2200}}
    lab.configure(**{**sections, "balance": {"policy": policy}})
    done = lab.run()
    assert done.code == 0, done
    epochs = lab.events("epoch-done")[4:]  # the first ones begin evenly
    first, *others = np.sum([epoch.facts.ranks.samples for epoch in epochs], axis=0).tolist()
    assert first < sum(others)
    assert sum(epochs[-1].facts.balance.shares) == 24
    for epoch in epochs:
        ranks = epoch.facts.ranks
        assert all(np.greater(ranks.worked_s, ranks.compute_s))


def test_groups_that_continue_without_a_gpu_hold_all_samples(lab):
    """The last GPU takes a tenth of a second for whatever it gets."""
    sections = partitioned()
    sections["dnns"][0]["stop"] = {"max_epochs": 16}
    sections["backend"]["workers"] = [{}, {}, {"launch_s": 0.1}]
    lab.configure(**{**sections, "balance": {"policy": "fitted"}})
    done = lab.run()
    assert done.code == 0, done
    assert [event.gpu for event in lab.events("gpu-left-out")] == [2]
    sizes, owner = parts_of(lab)
    assert (len(sizes), sum(sizes), owner.min()) == (2, NUM_TRAIN, 0)
    assert len(lab.events("epoch-done")) == 16


def test_broken_samples_are_left_out_until_they_are_mended(lab):
    data = {"dataset": "toys:points", "args": {"broken": 3}, "max_bad_fraction": 0.05}
    lab.configure(**partitioned(**data))
    done = lab.run()
    assert done.code == 0, done
    reported = sorted(event.sample_id for event in lab.events("bad-sample"))
    assert reported == [0, 1, 2]
    sizes, owner = parts_of(lab)
    num_broken = np.count_nonzero(owner < 0)
    assert sum(sizes) == NUM_TRAIN - num_broken
    epochs = lab.events("epoch-done")
    assert [epoch.facts.num_trained for epoch in epochs] == [NUM_TRAIN] * 6
    assert epochs[0].facts.num_samples == 120 - (3 - num_broken)
    (lab.folder / "mended").touch()
    sections = partitioned(**data)
    sections["dnns"][0]["stop"] = {"max_epochs": 7}
    lab.configure(**sections)
    done = lab.run()
    assert done.code == 0, done
    sizes, owner = parts_of(lab)
    assert (sum(sizes), owner.min()) == (NUM_TRAIN, 0)
    assert lab.events("epoch-done")[-1].facts.num_samples == 120


def test_too_many_broken_samples_end_the_run(lab):
    lab.configure(**partitioned(dataset="toys:points", args={"broken": 12}, max_bad_fraction=0.05))
    done = lab.run()
    assert done.code == 2, done
    reported = r"\d+ of 120 samples are broken, more than data.max_bad_fraction \(0.05\) allows"
    assert re.search(reported, done.err), done


def many_broken(num_broken: int, limit: float, partition: str) -> dict[str, object]:
    """48 training samples, 16 for each of three GPUs, and the first of all 60 samples are broken."""
    args = {"num_samples": 60, "broken": num_broken}
    data = {"dataset": "toys:points", "args": args, "max_bad_fraction": limit, "partition": partition}
    return partitioned(**data, max_traversal_gap=None)


@pytest.mark.parametrize("partition", ["by_class", "contiguous"])
def test_broken_samples_leave_no_part_empty_while_there_are_others(lab, partition):
    """More of the training samples are broken than a part holds: in one part, nothing would be left."""
    sections = many_broken(30, 0.5, partition)
    sections["dnns"][0]["stop"] = {"max_epochs": 2}
    lab.configure(**sections)
    done = lab.run()
    assert done.code == 0, done
    assert "Traceback" not in done.err, done
    assert sorted(event.sample_id for event in lab.events("bad-sample")) == list(range(30))
    sizes, owner = parts_of(lab)
    assert len(sizes) == NUM_RANKS
    assert max(sizes) - min(sizes) <= 1
    sections["dnns"][0]["stop"] = {"max_epochs": 3}
    lab.configure(**sections)
    done = lab.run()
    assert done.code == 0, done
    assert parts_of(lab)[1].tolist() == owner.tolist()


@pytest.mark.parametrize("partition", ["by_class", "random"])
def test_the_number_of_broken_samples_is_reported_even_though_parts_are_empty(lab, partition):
    lab.configure(**many_broken(60, 0.05, partition))
    done = lab.run()
    assert done.code == 2, done
    reported = r"\d+ of 60 samples are broken, more than data.max_bad_fraction \(0.05\) allows"
    assert re.search(reported, done.err), done
    assert "Traceback" not in done.err, done


def test_fewer_usable_samples_than_gpus_are_reported_in_one_line(lab):
    lab.configure(**many_broken(60, 1.0, "by_class"))
    done = lab.run()
    assert done.code == 3, done
    assert "0 of 48 training samples are usable" in lab.results()["a"].cause, done
    assert "Traceback" not in done.err, done


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"dnns": [{"name": n, "model": "toys:toy"} for n in "ab"]}, "got 'partitioned' for 2 DNNs"),
        ({"schedule": {"paradigm": "local"}}, "got 'local', allowed: global with data.access 'partitioned'"),
    ],
)
def test_what_partitioned_data_is_not_for_is_refused(lab, change, reported):
    sections = {**partitioned(), **change}
    sections["backend"]["rates"]["b"] = {1: 400}
    if "dnns" not in change:
        del sections["backend"]["rates"]["b"]
    lab.configure(**sections)
    for verb in ("validate", "run"):
        done = lab.run_alone(verb, "run.yaml")
        assert done.code == 2, done
        assert re.search(re.escape(reported), done.err), done


def test_more_gpus_than_a_step_has_samples_are_refused(lab):
    """Some part would never be drawn from. The file alone shows this for one node, a start for all nodes."""
    sections = partitioned()
    sections["dnns"][0]["batch_size"] = 2
    sections["balance"] = {"policy": "even"}
    lab.configure(**sections)
    reported = "batch_size: got 2, allowed: at least 3 with data.access 'partitioned'"
    done = lab.run_alone("validate", "run.yaml")
    assert done.code == 2, done
    assert re.search(rf"run.yaml:\d+: dnns.0.{reported}", done.err), done
    cut = ["--set", "slots.per_node=1", "--set", "slots.ranks_per_node=3"]
    assert lab.run_alone("validate", "run.yaml", *cut).code == 0
    done = lab.run("run", "run.yaml", *cut, num_ranks=9)
    assert done.code == 2, done
    assert f"dnns.a.{reported}" in done.err, done
    assert "Traceback" not in done.err, done
    few = ["--set", "schedule.max_gpus_per_dnn=2", "--set", "dnns.a.stop.max_epochs=1"]
    done = lab.run("run", "run.yaml", *cut, *few, num_ranks=9)
    assert done.code == 0, done
    assert lab.events("epoch-done")[0].facts.partition.sizes == (48, 48)


@pytest.mark.parametrize("partition", ["random", "by_class"])
def test_more_gpus_than_training_samples_are_refused_before_anything_is_measured(lab, partition):
    lab.configure(**partitioned(dataset="toys:points", args={"num_samples": 3}, partition=partition))
    done = lab.run()
    assert done.code == 2, done
    reported = "hpcbal: data.dataset: got 2 training samples, allowed: at least 3"
    assert done.err.count(reported) == 1, done
    assert "Traceback" not in done.err, done
    assert lab.events("run-started") == []
    few = ["--set", "schedule.max_gpus_per_dnn=2", "--set", "balance.shares=[2, 1]"]
    done = lab.run("run", "run.yaml", *few)
    assert done.code == 0, done
    assert lab.events("epoch-done")[0].facts.partition.sizes == (1, 1)


def test_a_killed_rank_during_a_migration_ends_the_job(lab):
    """A dead rank blocks no other, though samples travel to or from it nearly all the time."""
    lab.configure(**moving(max_epochs=60))
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 2, "epoch 2")
    running.signal_rank(3, signal.SIGKILL)
    assert running.wait().code not in (0, 75)


def test_parts_that_take_long_to_read_are_no_stall(lab):
    """One rank reads for much longer than ranks may be silent; those that wait for it say that they do."""
    toys = lab.folder / "toys.py"
    slow = "    def read(self, sample_id):\n        if os.environ['OMPI_COMM_WORLD_RANK'] == '3':\n"
    slow += "            time.sleep(0.15)\n"
    text = toys.read_text(encoding="utf-8")
    assert text.count("    def read(self, sample_id):\n") == 1
    toys.write_text(text.replace("    def read(self, sample_id):\n", slow), encoding="utf-8")
    lab.configure(**partitioned())
    done = lab.run("run", "run.yaml", "--set", "stall_timeout_s=3", "--set", "dnns.0.stop.max_epochs=1")
    assert done.code == 0, done


@pytest.mark.parametrize("partition", ["random", "by_class"])
def test_a_stop_while_data_is_loaded_waits_for_one_sample_and_loses_nothing(lab, partition):
    """First before anything is trained, then with parts that have been drawn from for long."""
    sections = partitioned(max_traversal_gap=None, partition=partition)
    lab.configure(**sections, output={"dir": "whole"})
    lab.out = lab.folder / "whole"
    assert lab.run().code == 0
    whole = lab.outcome()["a"]
    lab.out = lab.folder / "out"
    lab.configure(**sections)
    reading, training = hold_reading(lab), hold_training(lab, '"epoch-done"', 3)

    def stop_while_loading() -> None:
        reading.unlink(missing_ok=True)
        running = lab.start()
        running.until(lambda: "a loads its data: " in (lab.folder / ".stdout").read_text(), "loading")
        trainers = [pid for rank, pid in running.pids().items() if rank >= 2]
        running.process.terminate()
        done = running.wait()
        assert done.code == 75, done
        assert "Traceback" not in done.err, done
        assert len(trainers) == NUM_RANKS
        counts = [lab.folder / f"reads-{pid}" for pid in trainers]
        assert all(not path.exists() or path.stat().st_size < 32 for path in counts), "all of it was read"

    stop_while_loading()
    assert lab.events("epoch-done") == []
    reading.touch()
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 3, "epoch 3")
    running.process.terminate()
    assert running.wait().code == 75
    num_epochs, before = len(lab.events("epoch-done")), parts_of(lab)
    stop_while_loading()
    assert len(lab.events("epoch-done")) == num_epochs
    np.testing.assert_array_equal(parts_of(lab)[1], before[1])
    reading.touch()
    training.touch()
    goes_on_to_the_end_of(lab, whole)
