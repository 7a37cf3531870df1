"""Partitioned data in whole runs: samples move, stops lose none, and broken ones leave no part empty."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpcbal.data.pipeline import Pipeline
from hpcbal.errors import InputError

EXAMPLE = Path(__file__).parents[4] / "configs" / "partitioned.yaml"
NUM_SLOTS, NUM_TRAIN = 3, 96
FIRST_TRAINER = 2


def partitioned(**data: Any) -> dict[str, Any]:
    """The only DNN on three slots; the first slot gets four samples of six."""
    dataset = {"dataset": "in_process_toys:points", "args": {"num_samples": 120}}
    toy = {"name": "a", "model": "in_process_toys:toy", "batch_size": 24, "args": {"hook": "act"}}
    return {
        "data": {**dataset, "access": "partitioned", "max_traversal_gap": 1, **data},
        "dnns": [{**toy, "stop": {"max_epochs": 6}}],
        "backend": {
            "name": "emulated",
            "precision": "float64",
            "collective": "mpi",
            "rates": {"a": {1: 2000, 2: 3900, 3: 5500}},
            "workers": [{"speed": 2.0}, {"speed": 0.5}, {"speed": 0.5}],
        },
        "balance": {"policy": "fixed", "shares": [4, 1, 1]},
    }


def use(lab: Any, output: str = "out", num_slots: int = NUM_SLOTS, epochs: int = 6, **sections: Any) -> None:
    sections["dnns"][0]["stop"] = {"max_epochs": epochs}
    lab.use(output=output, num_slots=num_slots, **sections)


@pytest.fixture(autouse=True)
def calm(hooks: dict[str, Callable[[int], Any]]) -> None:
    """Unless a test wants something else, nothing happens in a step."""
    hooks["act"] = lambda step: None


def parts_of(lab: Any) -> tuple[list[int], np.ndarray]:
    """Sizes of the parts in the checkpoint, and its owners."""
    arrays = lab.outcome()["a"][1]
    owner = arrays["partition/owner"]
    assert len(arrays["partition/drawn"]) == owner.max() + 1
    return np.bincount(owner[owner >= 0]).tolist(), owner


def last_facts(lab: Any) -> Any:
    return lab.events("epoch-done")[-1].facts


def test_the_example_runs(lab: Any) -> None:
    given = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    sections = {name: given[name] for name in ("data", "preprocessing", "dnns", "balance", "schedule")}
    backend = {**given["backend"], "collective": "mpi"}
    use(lab, num_slots=given["slots"]["per_node"], epochs=4, **sections, backend=backend, dataplane={})
    assert lab.run() == 0
    assert last_facts(lab).partition.migrations == 1
    assert lab.events("epoch-done")[-1].metrics["val_accuracy"] > 0.9


def test_samples_move_to_the_slot_that_takes_more(lab: Any) -> None:
    use(lab, **partitioned(partition="by_class"))
    assert lab.run() == 0
    epochs = lab.events("epoch-done")
    assert [epoch.facts.num_trained for epoch in epochs] == [NUM_TRAIN] * 6
    facts = last_facts(lab).partition
    assert facts.sizes == (64, 16, 16)
    assert (facts.migrations, facts.moved) == (1, 32)
    assert facts.gap <= 1
    sizes, owner = parts_of(lab)
    assert (sizes, len(owner)) == ([64, 16, 16], NUM_TRAIN)
    assert epochs[-1].metrics["val_accuracy"] > 0.6
    assert len(lab.events("preprocessing-measured")) <= len(epochs)


def test_without_migration_parts_stay(lab: Any) -> None:
    use(lab, **partitioned(max_traversal_gap=None, partition="contiguous"))
    assert lab.run() == 0
    facts = last_facts(lab).partition
    assert (facts.sizes, facts.migrations, facts.gap) == ((32, 32, 32), 0, 9.0)
    assert parts_of(lab)[1].tolist() == np.repeat(range(NUM_SLOTS), 32).tolist()


@pytest.fixture
def whole(lab: Any) -> Callable[..., Any]:
    """The outcome of an undisturbed run with these settings; the output directory is left for the next."""

    def run(sections: dict[str, Any]) -> Any:
        use(lab, "whole", **sections)
        assert lab.run() == 0
        outcome = lab.outcome()
        use(lab, **sections)
        return outcome

    return run


@pytest.mark.parametrize("how", ["signal", "death"])
def test_a_run_that_was_ended_is_resumed_with_its_parts(
    lab: Any, whole: Callable[..., Any], how: str
) -> None:
    """With shares that stay, the weights are those of an undisturbed run, to the last bits."""
    wanted = whole(partitioned(max_traversal_gap=None))
    in_epoch_4 = 3 * 4 * NUM_SLOTS + 5  # four steps an epoch
    if how == "signal":
        lab.stop_at(in_epoch_4, rank=1)
    else:
        lab.kill_at(in_epoch_4)
    assert len(lab.events("epoch-done")) >= 3
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)


@pytest.mark.parametrize("how", ["nothing", "signal", "death"])
def test_runs_whose_samples_move_end_with_the_same_weights(
    lab: Any, whole: Callable[..., Any], how: str
) -> None:
    """Samples move after the first pass; a run is ended in the second, which draws from the new parts."""
    wanted = whole(partitioned(partition="by_class"))
    in_epoch_2 = 4 * NUM_SLOTS + 5
    if how == "signal":
        lab.stop_at(in_epoch_2, rank=1)
    elif how == "death":
        lab.kill_at(in_epoch_2)
    assert lab.run() == 0
    (history, arrays), (whole_history, whole_arrays) = lab.outcome()["a"], wanted["a"]
    assert [entry[0] for entry in history] == [entry[0] for entry in whole_history]
    assert arrays.keys() == whole_arrays.keys()
    for name, array in whole_arrays.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


def test_parts_that_have_moved_are_kept_over_a_stop(lab: Any, capsys: Any) -> None:
    use(lab, **partitioned())
    lab.stop_when(
        lambda step: any(epoch.facts.partition.migrations for epoch in lab.events("epoch-done")), rank=1
    )
    _, before = parts_of(lab)
    capsys.readouterr()
    assert lab.run() == 0
    shown = capsys.readouterr().out
    assert "a loads its data: 24 to 72 samples are read and kept on each of 3 slots" in shown
    sizes, after = parts_of(lab)
    assert sizes == [64, 16, 16]
    assert after.tolist() == before.tolist()
    assert last_facts(lab).partition.migrations == 0  # of this start


@pytest.mark.parametrize(
    ("num_slots", "change", "reported"),
    [
        (2, {}, ""),
        (
            3,
            {"schedule": {"max_slots_per_dnn": 2}, "balance": {"policy": "even"}},
            "the interrupted round is not resumed: a had more slots than schedule.max_slots_per_dnn (2) and",
        ),
    ],
    ids=["other slots", "a lower limit"],
)
def test_other_slots_get_parts_of_their_own(
    lab: Any, caplog: pytest.LogCaptureFixture, num_slots: int, change: dict[str, Any], reported: str
) -> None:
    use(lab, **partitioned())
    lab.stop_at(2 * 4 * NUM_SLOTS + 5, rank=1)
    use(lab, num_slots=num_slots, **{**partitioned(), **change})
    with caplog.at_level("INFO"):
        assert lab.run() == 0
    sizes, _ = parts_of(lab)
    assert (len(sizes), sum(sizes)) == (2, NUM_TRAIN)
    assert "the data had 3 parts and is dealt again to 2 slots" in caplog.text
    assert reported in caplog.text


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-cpu"])
def test_samples_follow_shares_that_are_decided_while_training(lab: Any, policy: str) -> None:
    sections = partitioned(max_traversal_gap=0.5)
    sections["backend"]["rates"] = {"a": {1: 400, 2: 780, 3: 1100}}
    use(lab, epochs=12, **{**sections, "balance": {"policy": policy}})
    assert lab.run() == 0
    assert last_facts(lab).partition.migrations >= 1
    sizes, _ = parts_of(lab)
    assert sizes[0] > 32 > max(sizes[1:])
    assert sum(sizes) == NUM_TRAIN


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-cpu"])
def test_preprocessing_that_all_slots_do_equally_slowly_evens_out_their_shares(
    lab: Any, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """A sample takes 5 ms on any slot before the first computes on it for 0.6 ms, or the others for 2.5 ms.

    Without the 5 ms the first slot would get four times as much as the others. With them it is 1.3 times
    where one comes after the other, and nothing where samples are preprocessed meanwhile.
    """

    def complete_slowly(self: Any, sample: Any, rng: Any, complete: Any = Pipeline.complete) -> Any:
        time.sleep(0.005)
        return complete(self, sample, rng)

    monkeypatch.setattr(Pipeline, "complete", complete_slowly)
    sections = partitioned(max_traversal_gap=None)
    sections["backend"]["rates"] = {"a": {1: 800, 2: 1560, 3: 2200}}
    use(lab, epochs=8, **{**sections, "balance": {"policy": policy}})
    assert lab.run() == 0
    epochs = lab.events("epoch-done")[4:]  # the first ones begin evenly
    first, *others = np.sum([epoch.facts.ranks.samples for epoch in epochs], axis=0).tolist()
    assert first < sum(others)
    assert sum(epochs[-1].facts.balance.shares) == 24
    for epoch in epochs:
        ranks = epoch.facts.ranks
        assert all(np.greater(ranks.worked_s, ranks.compute_s))


def test_groups_that_continue_without_a_slot_hold_all_samples(lab: Any) -> None:
    """The last slot takes a tenth of a second for whatever it gets."""
    sections = partitioned()
    sections["backend"] |= {
        "rates": {"a": {1: 400, 2: 780, 3: 1100}},
        "workers": [{}, {}, {"launch_s": 0.1}],
    }
    use(lab, epochs=16, **{**sections, "balance": {"policy": "fitted"}})
    assert lab.run() == 0
    assert [event.slot for event in lab.events("slot-left-out")] == [2]
    sizes, owner = parts_of(lab)
    assert (len(sizes), sum(sizes), owner.min()) == (2, NUM_TRAIN, 0)
    assert len(lab.events("epoch-done")) == 16


def test_a_rank_that_fails_while_samples_move_takes_the_group_along(
    lab: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples move while a pass is validated, and a rank raises then: none waits for them."""
    toys = importlib.import_module("in_process_toys")

    def fail(self: Any, parameters: Any, x: Any, y: Any) -> Any:
        if toys.RANK.number == FIRST_TRAINER + 1:
            raise RuntimeError("the layers do not fit")
        return loss(self, parameters, x, y)

    loss = toys.Toy.loss
    monkeypatch.setattr(toys.Toy, "loss", fail)
    use(lab, **partitioned(max_traversal_gap=0.5))
    with caplog.at_level("INFO"):
        assert lab.run() == 3
    (failed,) = lab.events("dnn-failed")
    assert (failed.dnn_id, failed.cause) == ("a", "error")
    assert "RuntimeError: the layers do not fit" in failed.detail
    abandoned = [record for record in caplog.records if "a running migration was abandoned" in record.msg]
    assert {record.threadName for record in abandoned} == {"rank-2", "rank-3", "rank-4"}


def test_broken_samples_are_left_out_until_they_are_mended(lab: Any) -> None:
    data = {"args": {"num_samples": 120, "broken": 3}, "max_bad_fraction": 0.05}
    use(lab, **partitioned(**data))
    assert lab.run() == 0
    assert sorted(event.sample_id for event in lab.events("bad-sample")) == [0, 1, 2]
    sizes, owner = parts_of(lab)
    num_broken = np.count_nonzero(owner < 0)
    assert sum(sizes) == NUM_TRAIN - num_broken
    epochs = lab.events("epoch-done")
    assert [epoch.facts.num_trained for epoch in epochs] == [NUM_TRAIN] * 6
    assert epochs[0].facts.num_samples == 120 - (3 - num_broken)
    importlib.import_module("in_process_toys").MENDED.set()
    use(lab, epochs=7, **partitioned(**data))
    assert lab.run() == 0
    sizes, owner = parts_of(lab)
    assert (sum(sizes), owner.min()) == (NUM_TRAIN, 0)
    assert last_facts(lab).num_samples == 120


def many_broken(num_broken: int, limit: float, partition: str) -> dict[str, Any]:
    """48 training samples, 16 for each of three slots, and the first of all 60 samples are broken."""
    args = {"num_samples": 60, "broken": num_broken}
    return partitioned(args=args, max_bad_fraction=limit, partition=partition, max_traversal_gap=None)


@pytest.mark.parametrize("partition", ["by_class", "contiguous"])
def test_broken_samples_leave_no_part_empty_while_there_are_others(lab: Any, partition: str) -> None:
    """More of the training samples are broken than a part holds: in one part, nothing would be left."""
    use(lab, epochs=2, **many_broken(30, 0.5, partition))
    assert lab.run() == 0
    assert sorted(event.sample_id for event in lab.events("bad-sample")) == list(range(30))
    sizes, owner = parts_of(lab)
    assert len(sizes) == NUM_SLOTS
    assert max(sizes) - min(sizes) <= 1
    use(lab, epochs=3, **many_broken(30, 0.5, partition))
    assert lab.run() == 0
    assert parts_of(lab)[1].tolist() == owner.tolist()


@pytest.mark.parametrize(
    ("sections", "num_samples"),
    [
        (partitioned(args={"num_samples": 120, "broken": 12}, max_bad_fraction=0.05), 120),
        (many_broken(60, 0.05, "by_class"), 60),
        (many_broken(60, 0.05, "random"), 60),
    ],
    ids=["some", "all by class", "all"],
)
def test_too_many_broken_samples_end_the_run_even_though_parts_are_empty(
    lab: Any, capsys: Any, sections: dict[str, Any], num_samples: int
) -> None:
    use(lab, **sections)
    assert lab.run() == 2
    reported = f" of {num_samples} samples are broken, more than data.max_bad_fraction (0.05) allows"
    assert reported in capsys.readouterr().err


def test_fewer_usable_samples_than_slots_are_reported_in_one_line(lab: Any) -> None:
    use(lab, **many_broken(60, 1.0, "by_class"))
    assert lab.run() == 3
    (failed,) = lab.events("dnn-failed")
    assert failed.detail.startswith("0 of 48 training samples are usable")
    assert len(failed.detail.splitlines()) == 1


def test_more_slots_than_a_step_has_samples_are_refused_once_the_slots_are_known(lab: Any) -> None:
    """Some part would never be drawn from. A file that asks for one slot on each node does not show this."""

    def small(epochs: int, **schedule: Any) -> None:
        sections = partitioned()
        sections["dnns"][0]["batch_size"] = 2
        sections |= {"balance": {"policy": "even"}, "schedule": schedule}
        one_slot = {"change": lambda config: config["slots"].update(per_node=1)}
        use(lab, epochs=epochs, **sections, **one_slot)

    small(6)
    with pytest.raises(InputError, match=r"dnns\.a\.batch_size: got 2, allowed: at least 3 with data.access"):
        lab.run()
    small(1, max_slots_per_dnn=2)
    assert lab.run() == 0
    assert last_facts(lab).partition.sizes == (48, 48)


@pytest.mark.parametrize("partition", ["random", "by_class"])
def test_more_slots_than_training_samples_are_refused_before_anything_is_measured(
    lab: Any, partition: str
) -> None:
    sections = partitioned(args={"num_samples": 3}, partition=partition)
    use(lab, **sections)
    with pytest.raises(InputError, match=r"data\.dataset: got 2 training samples, allowed: at least 3"):
        lab.run()
    assert lab.events("run-started") == []
    few = {"schedule": {"max_slots_per_dnn": 2}, "balance": {"policy": "fixed", "shares": [2, 1]}}
    use(lab, **{**sections, **few})
    assert lab.run() == 0
    assert lab.events("epoch-done")[0].facts.partition.sizes == (1, 1)


def test_parts_that_take_long_to_read_are_no_stall(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank reads for much longer than ranks may be silent; those that wait for it say that they do."""
    toys = importlib.import_module("in_process_toys")

    def read(points: Any, sample_id: int, read: Callable[..., Any] = toys.Points.read) -> Any:
        if getattr(toys.RANK, "number", 0) == FIRST_TRAINER + 1:
            time.sleep(0.1)
        return read(points, sample_id)

    monkeypatch.setattr(toys.Points, "read", read)
    use(lab, epochs=1, **partitioned(), stall_timeout_s=2)
    assert lab.run() == 0


@pytest.mark.parametrize("partition", ["random", "by_class"])
def test_a_stop_while_data_is_loaded_waits_for_one_sample_and_loses_nothing(
    lab: Any,
    whole: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    partition: str,
) -> None:
    """First before anything is trained, then with parts that have been drawn from for long."""
    wanted = whole(partitioned(max_traversal_gap=None, partition=partition))

    def stop_while_loading() -> None:
        capsys.readouterr()
        num_read = lab.stop_while_reading(monkeypatch)
        assert "a loads its data: " in capsys.readouterr().out
        assert 0 < max(num_read.values()) < 32, "all of it was read"

    stop_while_loading()
    assert lab.events("epoch-done") == []
    lab.stop_at(3 * 4 * NUM_SLOTS + 5, rank=1)
    num_epochs, before = len(lab.events("epoch-done")), parts_of(lab)
    assert num_epochs >= 3
    stop_while_loading()
    assert len(lab.events("epoch-done")) == num_epochs
    np.testing.assert_array_equal(parts_of(lab)[1], before[1])
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)


def test_a_rank_that_has_loaded_its_part_notes_that_it_trains(lab: Any, in_process: Any, hooks: Any) -> None:
    """If it dies then, its peers report what it did: not the loading, nor the last checkpoint."""
    toys = importlib.import_module("in_process_toys")
    seen: list[str] = []

    def look(step: int) -> None:
        if step > 0:
            seen.append(str(in_process.ranks.contexts[toys.RANK.number].liveness))

    hooks["act"] = look
    use(lab, epochs=2, checkpoint={"interval_s": 0}, **partitioned())
    assert lab.run() == 0
    assert set(seen) == {"training a"}
