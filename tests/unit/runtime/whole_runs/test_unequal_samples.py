"""Samples of unequal size in whole runs: equal work for all slots, and nothing is lost at a stop."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpcbal.data.source import PreprocessedSamples
from hpcbal.errors import DataError
from hpcbal.report.reading.run_files import read_run
from hpcbal.telemetry.views.read_status import read_status
from hpcbal.telemetry.views.summary import group_work
from hpcbal.training.emulated_backend import EmulatedReplica

NUM_SLOTS, NUM_TRAIN, BATCH, PREPROCESSOR = 3, 96, 24, 1
STEPS = NUM_TRAIN // BATCH


def unequal(
    balance: dict[str, Any] | None = None, args: dict[str, Any] | None = None, epochs: int = 4, **data: Any
) -> dict[str, Any]:
    toy = {"name": "a", "model": "in_process_toys:toy", "batch_size": BATCH, "args": {"hook": "act"}}
    samples = {"dataset": "in_process_toys:lines", "args": {"num_samples": 120, **(args or {})}}
    return {
        "data": {**samples, **data},
        "dataplane": {"block_samples": 8},
        "dnns": [{**toy, "stop": {"max_epochs": epochs}}],
        "backend": {
            "name": "emulated",
            "precision": "float64",
            "collective": "mpi",
            "rates": {"a": {1: 2000, 2: 3900, 3: 5500}},
        },
        "balance": {"cost": "sum", **(balance or {})},
    }


CHRONICA = unequal({"samples": "chronica"}, access="partitioned")


def use(lab: Any, output: str = "out", **sections: Any) -> None:
    lab.use(output=output, num_slots=NUM_SLOTS, **sections)


@pytest.fixture(autouse=True)
def calm(hooks: dict[str, Callable[[int], Any]]) -> None:
    """Unless a test wants something else, nothing happens in a step."""
    hooks["act"] = lambda step: None


def work_of(lab: Any) -> np.ndarray:
    """The work of each rank in each epoch."""
    return np.array([epoch.facts.ranks.work for epoch in lab.events("epoch-done")])


def assert_same(got: Any, wanted: Any, **tolerance: float) -> None:
    for name, (history, arrays) in wanted.items():
        assert [record[:2] for record in got[name][0]] == [record[:2] for record in history]
        assert got[name][1].keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_allclose(got[name][1][key], array, err_msg=key, **tolerance)


@pytest.mark.parametrize("declared", [False, True])
def test_all_slots_get_the_same_work_and_the_weights_are_those_of_equal_numbers(
    lab: Any, declared: bool
) -> None:
    outcomes, spread, left = {}, {}, {}
    for samples in ("in-order", "within-batch"):
        use(lab, samples, **unequal({"samples": samples}, {"declared": declared}))
        assert lab.run() == 0
        outcomes[samples] = lab.outcome()
        work = work_of(lab)
        spread[samples] = (np.ptp(work, axis=1) / work.mean(axis=1)).max()
        left[samples] = group_work([epoch.facts.ranks for epoch in lab.events("epoch-done")]).imbalance_left
        if declared:
            assert work.sum(axis=1) == pytest.approx(NUM_TRAIN)
    assert spread["within-batch"] < 0.02 < spread["in-order"]
    assert left["within-batch"] < 0.02 < 0.1 < left["in-order"]
    assert_same(outcomes["within-batch"], outcomes["in-order"], rtol=1e-9, atol=1e-12)


def test_dnns_share_one_stream_and_each_deals_its_own_steps(lab: Any, hooks: dict[str, Any]) -> None:
    """Two DNNs of unlike batch sizes: each of them trains each sample of the pass once."""
    hooks["one"] = hooks["other"] = lambda step: None
    sections = unequal({}, {"declared": True}, epochs=1)
    (toy,) = sections["dnns"]
    sections["dnns"] = [
        {**toy, "args": {"hook": "one"}},
        {**toy, "name": "b", "args": {"hook": "other"}, "batch_size": 16},
    ]
    alike = {1: 2000, 2: 3900, 3: 5500, 4: 7000}
    lab.use(
        num_slots=4, **{**sections, "backend": {**sections["backend"], "rates": {"a": alike, "b": alike}}}
    )
    assert lab.run() == 0
    trained: dict[str, dict[float, int]] = {"one": {}, "other": {}}
    for hook, rank, first_number in importlib.import_module("in_process_toys").TRAINED:
        assert first_number not in trained[hook], "a sample was trained twice"
        trained[hook][first_number] = rank
    assert len(trained["one"]) == NUM_TRAIN
    assert trained["one"].keys() == trained["other"].keys()
    of_first = [
        {sample for sample, rank in takers.items() if rank == min(takers.values())}
        for takers in trained.values()
    ]
    assert of_first[0] != of_first[1], "the first slot of each DNN has samples of its own"
    epochs = lab.events("epoch-done")
    assert sorted((epoch.dnn_id, epoch.pass_index) for epoch in epochs) == [("a", 0), ("b", 0)]
    for epoch in epochs:
        assert epoch.facts.ranks.work == pytest.approx((NUM_TRAIN / 2,) * 2, rel=0.02)


def test_a_step_that_exceeds_the_limit_of_work_fails_only_its_dnn(
    lab: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = unequal({"max_work_per_slot": 255}, {"declared": True}, epochs=2)
    (toy,) = sections["dnns"]
    sections["dnns"] = [toy, {**toy, "name": "b", "batch_size": 8}]
    sections["backend"]["rates"] = {name: {1: 2000, 2: 3900} for name in "ab"}
    lab.use(num_slots=4, **sections)
    assert lab.run() == 3
    (failed,) = lab.events("dnn-failed")
    assert (failed.dnn_id, failed.cause) == ("a", "error")
    assert " of work on one of 2 slots, allowed: 255 (balance.max_work_per_slot)" in failed.detail
    assert f"a FAILED: error: {failed.detail}" in capsys.readouterr().out
    assert lab.states()["b"] == ("done", 2)
    assert lab.states()["a"] == ("failed", 0)
    sections["balance"]["max_work_per_slot"] = 400
    lab.use(num_slots=4, **sections)
    assert lab.run(retry_failed=True) == 0
    assert lab.states()["a"] == ("done", 2)


def test_at_its_own_pace_a_dnn_keeps_to_the_limit_of_undeclared_sizes(lab: Any) -> None:
    """Nobody makes its samples before the ranks of its group do; equal to the bit to a round."""
    outcomes = {}
    for paradigm in ("global", "elastic"):
        sections = unequal({"max_work_per_slot": 255}, epochs=2)
        lab.use(paradigm, paradigm, num_slots=NUM_SLOTS, **sections)
        assert lab.run() == 3
        (failed,) = lab.events("dnn-failed")
        assert " of work on one of 3 slots, allowed: 255 (balance.max_work_per_slot)" in failed.detail
        sections["balance"]["max_work_per_slot"] = 1400
        lab.use(paradigm, f"{paradigm} above", num_slots=NUM_SLOTS, **sections)
        assert lab.run() == 0
        outcomes[paradigm] = lab.outcome(), work_of(lab)
    assert_same(outcomes["elastic"][0], outcomes["global"][0], rtol=0.0, atol=0.0)
    np.testing.assert_array_equal(outcomes["elastic"][1], outcomes["global"][1])


def test_no_share_is_padded_beyond_the_limit_of_work(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    most, ends = 9 * 40 * 6.0, []

    def compute(replica: Any, batch: Any, *args: Any, compute: Any = EmulatedReplica.compute) -> Any:
        ends.append(len(batch.ids) * max(map(len, batch.x)) * batch.padding_limit)
        return compute(replica, batch, *args)

    monkeypatch.setattr(EmulatedReplica, "compute", compute)
    use(lab, **unequal({"max_work_per_slot": most, "cost": "padded"}, epochs=1))
    assert lab.run() == 0
    assert ends == pytest.approx([most] * (NUM_SLOTS * STEPS))


def test_the_emulated_example_runs_and_leaves_little_imbalance(lab: Any) -> None:
    """Steps are fast here: only their work counts."""
    text = (Path(__file__).parents[4] / "docs" / "examples" / "lengths.yaml").read_text()
    sections = yaml.safe_load(text)
    assert sections.pop("slots") == {"per_node": 4}
    sections["defaults"]["stop"] = {"max_epochs": 1}
    for rates in sections["backend"]["rates"].values():
        rates.update({slots: 1000.0 * rate for slots, rate in rates.items()})
    left = {}
    for samples in ("within-batch", "in-order"):
        sections["balance"]["samples"] = samples
        lab.use(output=samples, num_slots=4, **{**sections, "dataplane": {}})
        assert lab.run() == 0
        left[samples] = [work.imbalance_left for work in read_run(lab.out).works]
    assert len(left["within-batch"]) == 2, "one for each network"
    assert max(left["within-batch"]) < 0.02
    assert min(left["in-order"]) > 0.1


def test_work_and_the_imbalance_left_are_in_ledger_status_and_report(lab: Any) -> None:
    use(lab, **unequal({"samples": "in-order"}, {"declared": True}, epochs=2))
    assert lab.run() == 0
    last = lab.events("epoch-done")[-1].facts.ranks
    for waited_s, collective_s in zip(last.waited_s, last.collective_s, strict=True):
        assert 0.0 <= waited_s <= collective_s
    assert sum(last.waited_s) > 0.0
    (dnn,) = read_status(lab.out)["dnns"]
    found = group_work([last])
    assert found is not None
    assert dnn["work"] == {
        "relative": list(found.relative),
        "imbalance_left": found.imbalance_left,
        "waited": found.waited,
    }
    (work,) = read_run(lab.out).works
    assert work.num_epochs == 2
    assert list(work.by_slot.values()) == pytest.approx(
        work_of(lab).sum(axis=0) * NUM_SLOTS / (2 * NUM_TRAIN)
    )


@pytest.mark.parametrize("samples", ["in-order", "within-batch"])
def test_parts_that_are_not_chosen_by_size_count_no_work(
    lab: Any, capsys: pytest.CaptureFixture[str], samples: str
) -> None:
    use(lab, **unequal({"samples": samples}, {"declared": True}, epochs=1, access="partitioned"))
    assert lab.run() == 0
    warning = (
        f"warning: samples differ in size, but with data.access: partitioned and balance.samples: {samples}"
    )
    assert f"] {warning} slots share them by number, not by work; use" in capsys.readouterr().out
    (epoch,) = lab.events("epoch-done")
    ranks = epoch.facts.ranks
    assert (ranks.work, ranks.waited_s, ranks.slowest_work) == (None, None, None)
    assert "work" not in read_status(lab.out)["dnns"][0]


def test_padded_work_is_less_where_similar_samples_meet(lab: Any) -> None:
    total = {}
    for samples in ("in-order", "within-batch"):
        use(lab, samples, **unequal({"samples": samples, "cost": "padded"}, {"declared": True}, epochs=2))
        assert lab.run() == 0
        total[samples] = work_of(lab).sum()
    assert total["within-batch"] < 0.85 * total["in-order"]


def test_lookahead_and_broken_samples_change_nothing_of_that(lab: Any) -> None:
    args = {"declared": True, "broken": 5}
    use(lab, **unequal({}, args, epochs=2, lookahead=3, max_bad_fraction=0.1))
    assert lab.run() == 0
    usable = sum(epoch.facts.num_samples for epoch in lab.events("epoch-done"))
    assert usable == 2 * (120 - 5)
    assert np.ptp(work_of(lab), axis=1).max() < 2.0


def test_a_larger_batch_size_would_change_the_order_of_lookahead(lab: Any) -> None:
    sections = unequal({}, {"declared": True}, epochs=1, lookahead=2)
    use(lab, **sections)
    assert lab.run() == 0
    (toy,) = sections["dnns"]
    sections["dnns"] = [toy, {**toy, "name": "b", "batch_size": 2 * BATCH}]
    sections["backend"]["rates"] = dict.fromkeys("ab", sections["backend"]["rates"]["a"])
    use(lab, **sections)
    with pytest.raises(DataError, match=r"with data\.lookahead the largest batch_size"):
        lab.run()


@pytest.mark.parametrize("sections", [unequal({}, {"declared": True}, lookahead=2), CHRONICA])
@pytest.mark.parametrize("how", ["signal", "death"])
def test_a_run_that_was_ended_inside_a_pass_is_resumed_to_the_last_bits(
    lab: Any, sections: dict[str, Any], how: str
) -> None:
    slow = {**sections["backend"], "rates": {"a": {1: 500, 2: 980, 3: 1400}}}  # a stop comes within the pass
    sections = {**sections, "backend": slow}
    use(lab, "whole", **sections)
    assert lab.run() == 0
    wanted = lab.outcome()
    use(lab, **sections)
    in_epoch_3 = 2 * STEPS * NUM_SLOTS + 2
    if how == "signal":
        lab.stop_at(in_epoch_3, rank=PREPROCESSOR)
        assert {line.position.offset for line in lab.events("checkpoint-written")} - {120}, (
            "no stop was in a pass"
        )
    else:
        lab.kill_at(in_epoch_3)
    assert lab.run() == 0
    assert_same(lab.outcome(), wanted, rtol=0.0, atol=0.0)


def test_chronica_draws_each_sample_once_per_pass_and_levels_the_parts(
    lab: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[int] = Counter()

    def sample(
        source: Any, sample_id: int, *args: Any, make: Any = PreprocessedSamples.sample, **more: Any
    ) -> Any:
        made[sample_id] += 1
        return make(source, sample_id, *args, **more)

    monkeypatch.setattr(PreprocessedSamples, "sample", sample)
    monkeypatch.setattr("hpcbal.runtime.rank.data.doubts_about_values", lambda *_, **__: ())  # it reads eight
    use(lab, **CHRONICA)
    reads: list[int] = importlib.import_module("in_process_toys").READS
    reads.clear()
    assert lab.run() == 0
    assert "warning" not in capsys.readouterr().out
    assert set(Counter(reads).values()) == {1}, "each sample is read by its owner, and kept"
    work, epochs = work_of(lab), lab.events("epoch-done")
    assert set(made.values()) == {1 + len(epochs)}, "loading a sample measures it"
    assert [epoch.facts.num_trained for epoch in epochs] == [NUM_TRAIN] * len(epochs)
    assert work.sum(axis=1) == pytest.approx(NUM_TRAIN)
    assert np.ptp(work[-1]) < 0.5 * np.ptp(work[0])
    assert epochs[-1].facts.partition.moved > 0
    assert epochs[-1].facts.partition.gap == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("change", ["slots", "samples"])
def test_chronica_draws_each_sample_once_in_a_pass_whose_parts_change(lab: Any, change: str) -> None:
    """A pass goes on with other slots, or with samples that were repaired: nothing is drawn twice."""
    toys = importlib.import_module("in_process_toys")
    slow = {"rates": {"a": {1: 500, 2: 980, 3: 1400}}}  # a stop comes within the pass
    broken = 0 if change == "slots" else 5
    sections = unequal(
        {"samples": "chronica"}, {"broken": broken}, epochs=1, access="partitioned", max_bad_fraction=0.1
    )
    sections["backend"] |= slow
    use(lab, **sections)
    toys.TRAINED.clear()
    lab.stop_at(NUM_SLOTS + 1, rank=PREPROCESSOR)
    assert 0 < len(toys.TRAINED) < NUM_TRAIN - broken
    toys.MENDED.set()
    lab.use(num_slots=2 if change == "slots" else NUM_SLOTS, **sections)
    assert lab.run() == 0
    trained = Counter(first_number for _, _, first_number in toys.TRAINED)
    assert set(trained.values()) == {1}
    assert len(trained) == NUM_TRAIN


def test_gradients_that_count_by_size_train_other_weights(lab: Any) -> None:
    """[CHRONICA] Eq. 7; with equal sizes it changes nothing."""
    outcomes = {}
    for weights in ("samples", "size"):
        use(lab, weights, **unequal({"samples": "in-order", "gradient_weights": weights}, epochs=2))
        assert lab.run() == 0
        outcomes[weights] = lab.outcome()["a"][1]
    kernel = "weights/softmax/kernel"
    assert not np.allclose(outcomes["samples"][kernel], outcomes["size"][kernel], rtol=1e-6)
    assert np.allclose(outcomes["samples"][kernel], outcomes["size"][kernel], atol=0.5)
