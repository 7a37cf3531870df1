"""Paradigms over real ranks; tests/unit/runtime/whole_runs tests their contract in one process."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.e2e


def use(lab, paradigm: str) -> None:
    """Three DNNs on two slots, so that one has to wait."""
    lab.configure(schedule={"paradigm": paradigm, "delta": "15%"}, slots={"per_node": 2})


def test_signals_and_kills_lose_nothing_where_each_dnn_trains_alone(lab):
    use(lab, "independent")
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
    epochs = {name: [entry[0] for entry in history] for name, (history, _) in lab.outcome().items()}
    assert epochs == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3], "c": [1, 2, 3, 4]}
    assert [row.state for row in lab.results().values()] == ["done"] * 3
    again = lab.run()
    assert again.code == 0
    assert "nothing to do" in again.out
