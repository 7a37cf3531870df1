"""Whole runs in which DNNs augment their samples: the same draws whatever the slots, stops and paradigms."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcbal.errors import OutputError

NOISY = [{"in_process_toys:Noisy": {"spread": 20.0}}]
DATA = {"dataset": "in_process_toys:pixels", "args": {"broken": 2}, "max_bad_fraction": 0.1}
PARADIGMS = ["global", "elastic", "independent"]
"""One with rounds, and those without: what draws does not depend on who shares a round."""


@pytest.fixture(autouse=True)
def calm(hooks: dict[str, Callable[[int], Any]]) -> None:
    """Unless a test wants something else, nothing happens in a step."""
    for name in ("act", "a", "b", "c"):
        hooks[name] = lambda step: None


def dnns(lab: Any, *augmented: str, hook: str = "") -> list[dict[str, Any]]:
    """The three DNNs of the lab; those named augment."""
    found = [lab.dnn(name, epochs, hook=hook or name) for name, epochs in lab.epochs.items()]
    return [{**dnn, "augment": NOISY} if dnn["name"] in augmented else dnn for dnn in found]


def use(lab: Any, output: str, paradigm: str = "global", num_slots: int = 2, **sections: Any) -> None:
    normalize = [{"normalize": {"mean": 0.5, "std": 0.25}}]
    lab.use(paradigm, output, num_slots, **{"data": DATA, "preprocessing": normalize, **sections})


def take_trained() -> dict[str, list[float]]:
    """The first number of every sample that was trained on since the last call, sorted, by hook."""
    trained = importlib.import_module("in_process_toys").TRAINED
    found: dict[str, list[float]] = {}
    for hook, _, first in trained:
        found.setdefault(hook, []).append(first)
    trained.clear()
    return {hook: sorted(numbers) for hook, numbers in found.items()}


def assert_close(got: Any, wanted: Any) -> None:
    assert got.keys() == wanted.keys()
    for name, (history, arrays) in wanted.items():
        assert len(got[name][0]) == len(history)
        for key, array in arrays.items():
            np.testing.assert_allclose(got[name][1][key], array, err_msg=key, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_runs_that_were_stopped_or_killed_go_on_to_the_same_weights(lab: Any, paradigm: str) -> None:
    use(lab, "whole", paradigm, dnns=dnns(lab, "a", "b", hook="act"))
    assert lab.run() == 0
    wanted = lab.outcome()
    for how in ("stopped", "killed"):
        use(lab, how, paradigm, dnns=dnns(lab, "a", "b", hook="act"))
        if how == "stopped":
            lab.stop_at(14, rank=2)
        else:
            lab.kill_at(15)
        assert lab.run() == 0
        lab.assert_same(lab.outcome(), wanted)


def test_samples_are_the_same_to_the_last_bit_on_any_number_of_slots(lab: Any) -> None:
    outcomes, trained = [], []
    for num_slots in (1, 2, 3):
        use(lab, f"{num_slots}", num_slots=num_slots, dnns=dnns(lab, "a")[:1])
        assert lab.run() == 0
        outcomes.append(lab.outcome())
        trained.append(take_trained()["a"])
    assert trained[0] == trained[1] == trained[2]
    for outcome in outcomes[1:]:
        assert_close(outcome, outcomes[0])


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_others_train_as_if_nobody_augmented_and_equal_lists_draw_equally(lab: Any, paradigm: str) -> None:
    use(lab, "plain", paradigm, dnns=dnns(lab))
    assert lab.run() == 0
    plain, trained_plain = lab.outcome(), take_trained()
    use(lab, "augmented", paradigm, dnns=dnns(lab, "a", "b"))
    assert lab.run() == 0
    augmented, trained = lab.outcome(), take_trained()
    assert lab.sample_dtype == "uint8"  # what travels stays as it was
    lab.assert_same({"c": augmented["c"]}, {"c": plain["c"]})
    assert trained["c"] == trained_plain["c"]
    assert trained["a"] != trained_plain["a"]
    for name in ("a", "b"):
        assert not np.array_equal(
            augmented[name][1]["weights/softmax/kernel"], plain[name][1]["weights/softmax/kernel"]
        )
    if paradigm == "independent":  # then both saw passes 0 and 1 first
        assert set(trained["b"]) < set(trained["a"])


def test_metrics_of_validation_are_those_of_the_samples_as_they_are(lab: Any) -> None:
    frozen = {"optimizer": {"name": "sgd", "learning_rate": 1e-12}}
    histories = []
    for output, augmented in (("plain", ()), ("augmented", ("a",))):
        use(lab, output, dnns=[{**dnn, **frozen} for dnn in dnns(lab, *augmented)[:1]])
        assert lab.run() == 0
        histories.append([record[2] for record in lab.outcome()["a"][0]])
    plain, augmented_history = histories
    for before, after in zip(plain, augmented_history, strict=True):
        assert after["val_loss"] == pytest.approx(before["val_loss"], rel=1e-9)
        assert after["loss"] != pytest.approx(before["loss"], rel=1e-3)
    losses = [metrics["loss"] for metrics in augmented_history]
    assert np.ptp(losses) > 1e-3 * losses[0]  # new noise in each epoch
    assert np.ptp([metrics["loss"] for metrics in plain]) < 1e-9


@pytest.mark.parametrize("chronica", [False, True])
def test_partitioned_data(lab: Any, chronica: bool) -> None:
    sections: dict[str, Any] = {
        "data": {**DATA, "access": "partitioned"},
        "dnns": dnns(lab, "a", hook="act")[:1],
    }
    if chronica:
        sections["balance"] = {"samples": "chronica"}
    use(lab, "whole", **sections)
    assert lab.run() == 0
    wanted, trained = lab.outcome(), take_trained()["act"]
    assert len(set(trained)) > 60  # bytes with noise, of fewer points
    use(lab, "stopped", **sections)
    lab.stop_at(7, rank=2)
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)


@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_sample_that_repeats_in_a_pass_gets_new_draws(lab: Any, num_slots: int) -> None:
    data = {
        "dataset": "in_process_toys:uneven",
        "sampling": "balanced",
        "args": {"broken": 2},
        "max_bad_fraction": 0.1,
    }
    use(lab, f"{num_slots}", num_slots=num_slots, data=data, dnns=dnns(lab, "a")[:1])
    assert lab.run() == 0
    trained = take_trained()["a"]
    use(lab, "plain", num_slots=num_slots, data=data, dnns=dnns(lab)[:1])
    assert lab.run() == 0
    assert len(trained) == len(plain := take_trained()["a"])
    # Noise is as fine as a byte, so a few draws may coincide.
    assert len(set(trained)) > 1.5 * len(set(plain))


def test_samples_of_unequal_size(lab: Any) -> None:
    data = {"dataset": "in_process_toys:lines", "args": {"num_samples": 120, "declared": True}}
    outcomes = []
    for num_slots in (1, 2):
        sections = {"data": data, "preprocessing": [], "dataplane": {"block_samples": 8}}
        use(lab, f"{num_slots}", num_slots=num_slots, **sections, dnns=dnns(lab, "a")[:1])
        assert lab.run() == 0
        outcomes.append((lab.outcome(), take_trained()["a"]))
    assert outcomes[0][1] == outcomes[1][1]
    assert_close(outcomes[1][0], outcomes[0][0])


def test_the_cost_is_in_the_ledger(lab: Any) -> None:
    use(lab, "out", dnns=dnns(lab, "a"))
    assert lab.run() == 0
    spent = {line.dnn_id: line.facts.augment_s for line in lab.events("epoch-done")}
    assert spent["a"] > 0.0
    assert spent["b"] is None


@pytest.mark.parametrize("num_slots", [1, 2])
def test_an_operation_that_fails_while_training_fails_its_dnn_only(lab: Any, num_slots: int) -> None:
    toys = importlib.import_module("in_process_toys")
    refused = int(toys.pixels().read(40)[0][0])
    wrong = {"augment": [{"in_process_toys:Noisy": {"refuses": refused}}]}
    use(lab, "out", num_slots=num_slots, dnns=[{**dnns(lab)[0], **wrong}, *dnns(lab)[1:]])
    assert lab.run() == 3
    (failed,) = lab.events("dnn-failed")
    assert failed.dnn_id == "a"
    assert "DNN a: augment: sample " in failed.detail
    assert "in_process_toys.py" in failed.detail
    assert "ValueError: no such number" in failed.detail
    assert {name: state for name, (state, _) in lab.states().items()} == {
        "a": "failed",
        "b": "done",
        "c": "done",
    }


def test_another_list_is_refused_on_resume(lab: Any) -> None:
    use(lab, "kept", dnns=dnns(lab, "a", hook="act"))
    lab.stop_at(14, rank=2)
    use(lab, "kept", dnns=dnns(lab, hook="act"))
    with pytest.raises(OutputError, match=r"dnns\.a\.augment"):
        lab.run()
