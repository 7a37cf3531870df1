"""Whole runs that start from the weights of another run."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.checkpoint.state import digest_of
from hpcbal.checkpoint.weights import read_weights


@pytest.fixture
def base(lab: Any) -> str:
    """The output of a run in which `b` has trained, and what it left as `DIR:DNN`."""
    lab.use(output="base")
    assert lab.run() == 0
    return str(lab.out)


def use(lab: Any, output: str, init: Any) -> None:
    lab.use(output=output, dnns=[{**dnn, "init": init} for dnn in lab.dnns(hook="act")])


def test_a_run_starts_from_the_weights_and_records_them(lab: Any, hooks: Any, base: str) -> None:
    hooks["act"] = lambda step: None
    begun = read_weights(f"{base}/dnns/b", "last")[0]
    use(lab, "tuned", {"from": base, "dnn": "b", "weights": "last"})
    assert lab.run() == 0
    lines = {line.dnn_id: line for line in lab.events("initial-weights")}
    assert set(lines) == {"a", "b", "c"}
    assert {line.path for line in lines.values()} == {str(begun.path)}
    assert {line.digest for line in lines.values()} == {digest_of(begun.path)}
    tuned = lab.outcome()
    use(lab, "random", None)
    assert lab.run() == 0
    with pytest.raises(AssertionError):
        lab.assert_same(lab.outcome(), tuned)


def test_a_stopped_run_needs_its_source_no_more(lab: Any, hooks: Any, base: str, capsys: Any) -> None:
    hooks["act"] = lambda step: None
    use(lab, "whole", f"{base}:b")
    assert lab.run() == 0
    wanted = lab.outcome()
    use(lab, "stopped", f"{base}:b")
    lab.kill_when(lambda: {line.dnn_id for line in lab.events("checkpoint-written")} == set("abc"))
    shutil.rmtree(base)
    hooks["act"] = lambda step: None
    capsys.readouterr()
    assert lab.run() == 0
    assert "cannot be read any more (No such file or directory) since" in capsys.readouterr().out
    lab.assert_same(lab.outcome(), wanted)


def test_other_weights_than_the_wanted_ones_are_named(lab: Any, hooks: Any, base: str, capsys: Any) -> None:
    """`best.h5` of the source is damaged: the run starts from what is left there, and says so."""
    hooks["act"] = lambda step: None
    best = Path(base) / "dnns" / "b" / "best.h5"
    best.write_bytes(best.read_bytes()[:100])
    best.with_name("best.previous.h5").unlink(missing_ok=True)
    use(lab, "tuned", f"{base}:b")
    capsys.readouterr()
    assert lab.run() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(f"DNN a: init: {best}: ") == 1, said
    assert "so it starts from last, epoch " in said
    assert {line.dnn_id for line in lab.events("model-warning")} == {"a", "b", "c"}


def test_weights_are_the_initial_ones_before_the_first_step(lab: Any, hooks: Any, base: str) -> None:
    """A learning rate of almost 0 leaves them as they were."""
    hooks["act"] = lambda step: None
    still = {"name": "sgd", "learning_rate": 1e-12}
    dnns = [{**dnn, "init": f"{base}:b", "optimizer": still} for dnn in lab.dnns(hook="act")]
    begun = read_weights(f"{base}/dnns/b")[0].arrays
    lab.use(output="still", dnns=dnns)
    assert lab.run() == 0
    for name in "abc":
        now = read_weights(lab.out / "dnns" / name)[0].arrays
        for key, array in now.items():
            np.testing.assert_allclose(array, begun[key], atol=1e-9)


def test_a_last_layer_of_other_classes_is_not_taken_over(
    lab: Any, hooks: Any, base: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs would mean others; a first run without names for its classes cannot be compared."""
    hooks["act"] = lambda step: None
    toys = importlib.import_module("in_process_toys")
    for output, names in (("named", ("ant", "bee", "cow")), ("other", ("cow", "bee", "ant"))):
        monkeypatch.setattr(toys.Points, "class_names", names, raising=False)
        use(lab, output, f"{base}:b" if output == "named" else f"{lab.out}:b")
        code = lab.run()
        assert code == (0 if output == "named" else 3)  # real runs check models first, and end with 2
    err = capsys.readouterr()
    said = " ".join((err.out + err.err).split())
    assert "was trained on the classes ant, bee, cow, but the data have cow, bee, ant (in this order)" in said
    assert "let that layer keep its random weights: init.skip: [" in said
