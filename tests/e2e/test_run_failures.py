"""Something breaks that concerns one DNN: the others finish, and the table names the cause."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.e2e

# DNN -> what happens to it, and a pattern of its cause in the table.
TROUBLES = {
    "builds-not": (
        {"trouble": "build"},
        r"error: DNN builds-not: model toys:toy: building it failed: toys.py:\d+: RuntimeError: no .*",
    ),
    "saves-not": (
        {"trouble": "name"},
        "error: array name 'weights/odd//name' is not allowed in a checkpoint: the parts between '/' must be "
        r"printable, not empty and not '\.'",
    ),
    "raises": (
        {"trouble": "raise", "at": 4},
        r"error: DNN raises: model toys:toy: a step failed: toys.py:\d+: RuntimeError: the layers do not fit",
    ),
    "exits": (
        {"trouble": "exit", "at": 3},
        r"error: DNN exits: model toys:toy: a step failed: toys.py:\d+: SystemExit: 4",
    ),
    "turns-nan": (
        {"trouble": "nan", "at": 11},
        r"nan: the loss \(nan per sample\) or a gradient is not finite",
    ),
    "too-large": (
        {"trouble": "memory", "at": 2},
        r"oom: DNN too-large: model toys:toy: a step failed: toys.py:\d+: MemoryError: 17 GiB asked for",
    ),
}


def dnn(name: str, epochs: int = 3, **args: object) -> dict[str, object]:
    return {"name": name, "model": "toys:toy", "args": args, "stop": {"max_epochs": epochs}}


def test_dnns_that_fail_leave_and_the_others_finish(lab):
    good = {"good-1": 3, "good-2": 4}
    dnns = [dnn(name, **args) for name, (args, _) in TROUBLES.items()]
    dnns += [dnn(name, epochs) for name, epochs in good.items()]
    rates = {entry["name"]: {1: 800, 2: 1500, 3: 2000} for entry in dnns}
    lab.configure(
        dnns=dnns,
        backend={"name": "emulated", "precision": "float64", "rates": rates},
        slots={"per_node": 2},
    )
    done = lab.run()
    print(done)
    assert done.code == 3, done
    results = lab.results()
    for name, (_, cause) in TROUBLES.items():
        assert results[name].state == "failed"
        assert re.fullmatch(cause, results[name].cause), results[name].cause
        assert re.search(cause, done.out)
    for name, epochs in good.items():
        assert (results[name].state, results[name].epochs, results[name].cause) == ("done", epochs, "")
    assert [line.event for line in lab.events()][-1] == "run-finished"
    again = lab.run()
    assert (again.code, again.err) == (3, ""), again
    assert "nothing to do" in again.out
    assert len(lab.events("run-started")) == 1
    (lab.folder / "mended").touch()
    retried = lab.run("run", "run.yaml", "--retry-failed")
    assert retried.code == 0, retried
    assert {row.state for row in lab.results().values()} == {"done"}
    assert lab.results()["turns-nan"].epochs == 3


def test_a_rank_that_hangs_ends_the_job_with_70_and_is_named(lab):
    """Both ranks of the group fall silent; the log of each shows its stack."""
    trouble = dnn("a", 5, trouble="sleep", at=5, only_rank=3)
    backend = {"name": "emulated", "precision": "float64", "rates": {"a": {1: 300, 2: 580}}}
    lab.configure(dnns=[trouble], backend=backend, slots={"per_node": 2})
    done = lab.run("run", "run.yaml", "--set", "stall_timeout_s=2")
    assert done.code == 70, done
    assert "no sign of life for " in done.err, done
    assert "stall_timeout_s: 2" in done.err
    for rank in (2, 3):
        assert f"rank {rank} on host " in done.err, done
    assert done.err.count("last seen training a") == 2, done
    assert "Traceback" not in done.err, done
    assert "died without an error message" not in done.err, done
    assert "in loss_and_gradient" in (lab.out / "logs" / "rank-003.log").read_text(encoding="utf-8")
    assert "in loss_and_gradient" not in (lab.out / "logs" / "rank-002.log").read_text(encoding="utf-8")
