"""Every paradigm obeys the contract of `global`: it stops, goes on, survives, and trains the same models."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

OTHERS = ["local", "homogeneous", "independent"]


def use(lab, paradigm: str, output: str = "out", num_slots: int = 2, **sections: Any) -> None:
    """Three DNNs on two slots by default, so that one has to wait."""
    lab.configure(
        schedule={"paradigm": paradigm, "delta": "15%"},
        slots={"per_node": num_slots},
        output={"dir": output},
        **sections,
    )
    lab.out = Path(lab.folder, output)


def only_a(config: dict[str, Any]) -> None:
    config["dnns"] = config["dnns"][:1]
    config["backend"]["rates"] = {"a": config["backend"]["rates"]["a"]}


@pytest.mark.parametrize("paradigm", OTHERS)
def test_stops_and_kills_change_nothing(lab, same_outcome, paradigm: str):
    use(lab, paradigm, "calm")
    assert lab.run().code == 0
    calm = lab.outcome()
    use(lab, paradigm)
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 2, "epoch")
    running.signal_rank(2, signal.SIGTERM)
    done = running.wait()
    assert done.code == 75, done
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 6, "epoch")
    running.signal_rank(3, signal.SIGKILL)
    done = running.wait(30.0)
    assert done.code == 1, done
    assert "rank 3 (trainer, pid " in done.err, done
    done = lab.run()
    assert done.code == 0, done
    same_outcome(lab.outcome(), calm)
    assert [row.state for row in lab.results().values()] == ["done"] * 3
    again = lab.run()
    assert again.code == 0
    assert "nothing to do" in again.out


@pytest.mark.parametrize("paradigm", OTHERS)
def test_a_failing_dnn_leaves_the_others_in_peace(lab, paradigm: str):
    def spoil(config: dict[str, Any]) -> None:
        config["dnns"][1]["args"] = {"trouble": "nan"}

    use(lab, paradigm, change=spoil)
    done = lab.run()
    assert done.code == 3, done
    results = lab.results()
    assert [results[name].state for name in "abc"] == ["done", "failed", "done"]
    assert results["b"].cause.startswith("nan")


@pytest.mark.parametrize("paradigm", OTHERS)
def test_too_many_broken_samples_stop_the_run(lab, paradigm: str):
    use(lab, paradigm, data={"dataset": "toys:points", "args": {"broken": 60}})
    done = lab.run()
    assert done.code == 2, done
    assert "more than data.max_bad_fraction" in done.err, done
    assert "Traceback" not in done.err, done


def test_sharing_a_stream_or_not_trains_the_same_models(lab, same_outcome):
    outcomes = []
    for paradigm in ("homogeneous", "independent"):
        use(lab, paradigm, paradigm, num_slots=3)  # all begin with pass 0
        assert lab.run().code == 0
        outcomes.append(lab.outcome())
    same_outcome(*outcomes)


def test_alone_in_global_and_independent_a_dnn_becomes_the_same_model(lab, same_outcome):
    outcomes = []
    for paradigm in ("global", "independent"):
        use(lab, paradigm, paradigm, num_slots=1, change=only_a)
        assert lab.run().code == 0
        outcomes.append(lab.outcome())
    same_outcome(*outcomes)


def test_independent_dnns_pay_for_their_own_preprocessing(lab):
    reads = []
    for paradigm in ("homogeneous", "independent"):
        use(lab, paradigm, paradigm, num_slots=3)
        for old in lab.folder.glob("reads-*"):
            old.unlink()
        assert lab.run().code == 0
        reads.append(sum(path.stat().st_size for path in lab.folder.glob("reads-*")))
    shared, alone = reads
    assert alone >= 120 * (5 + 3 + 4)  # every epoch of every DNN
    assert shared < 120 * (5 + 2)  # every pass once, and what was made ahead


@pytest.mark.parametrize("paradigm", ["global", *OTHERS])
def test_a_run_tells_how_long_it_will_take_and_how_right_it_was(lab, paradigm: str):
    use(lab, paradigm)
    done = lab.run()
    assert done.code == 0
    assert "if every DNN trains to its max_epochs" in done.out, done
    assert "predicted / actual " in done.out, done
    (told,) = lab.events("prediction")
    last = lab.events("run-finished")[-1]
    assert last.predicted_s == told.wall_time_s
    # DNNs train to their max_epochs here; steps take the time of their rates, the rest adds some more.
    assert 0.1 < last.predicted_s < last.actual_s
    assert lab.status()["prediction"]["remaining_s"] == 0.0


def test_no_gpu_is_idle_while_an_independent_dnn_waits(lab):
    use(lab, "independent", num_slots=1)
    assert lab.run().code == 0
    started = [line.plan.groups[0].dnn for line in lab.events("started-alone")]
    left = [line.dnn for line in lab.events("group-left")]
    assert sorted(started) == ["a", "b", "c"]
    assert left == started
