"""Paradigms over real ranks; tests/unit/runtime/whole_runs tests their contract in one process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

OTHERS = ["local", "homogeneous", "independent"]


def use(lab, paradigm: str, output: str = "out") -> None:
    """Three DNNs on two slots, so that one has to wait."""
    lab.configure(
        schedule={"paradigm": paradigm, "delta": "15%"}, slots={"per_node": 2}, output={"dir": output}
    )
    lab.out = Path(lab.folder, output)


def test_signals_and_kills_change_nothing_where_each_dnn_trains_alone(lab, same_outcome):
    paradigm = "independent"
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


@pytest.mark.parametrize("paradigm", ["global", *OTHERS])
def test_a_run_predicts_its_duration_and_reports_the_error(lab, paradigm: str):
    use(lab, paradigm)
    done = lab.run()
    assert done.code == 0
    assert "if every DNN trains to its max_epochs" in done.out, done
    assert "predicted / actual " in done.out, done
    (reported,) = lab.events("prediction")
    last = lab.events("run-finished")[-1]
    assert last.predicted_s == reported.wall_time_s
    # DNNs train to their max_epochs here; steps take the time of their rates, the rest adds some more.
    assert 0.1 < last.predicted_s < last.actual_s
    assert lab.status()["prediction"]["remaining_s"] == 0.0
