"""Checkpoints that were damaged between two starts."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.e2e


def stop_in_the_middle(lab) -> None:
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 4, "epoch")
    running.signal_rank(1, signal.SIGTERM)
    assert running.wait().code == 75


def test_a_truncated_checkpoint_is_noticed_and_the_previous_one_used(lab):
    stop_in_the_middle(lab)
    damaged = lab.out / "dnns" / "c" / "checkpoint.h5"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    done = lab.run()
    assert done.code == 0, done
    assert "warning: out/dnns/c/checkpoint.h5: " in done.out, done
    assert "using out/dnns/c/checkpoint.previous.h5 (epoch " in done.out, done
    assert len(lab.events("checkpoint-damaged")) == 1
    assert {name: row.epochs for name, row in lab.results().items()} == {"a": 5, "b": 3, "c": 4}
    assert [record[0] for record in lab.outcome()["c"][0]] == [1, 2, 3, 4]


def test_both_checkpoints_damaged_or_gone_start_that_dnn_anew(lab):
    stop_in_the_middle(lab)
    for name in ("checkpoint.h5", "checkpoint.previous.h5"):
        (lab.out / "dnns" / "c" / name).write_bytes(b"not HDF5")
    for path in (lab.out / "dnns" / "b").glob("checkpoint*"):
        path.unlink()
    done = lab.run()
    assert done.code == 0, done
    assert "there is no whole checkpoint, so training starts anew" in done.out, done
    assert {name: row.epochs for name, row in lab.results().items()} == {"a": 5, "b": 3, "c": 4}


def test_other_data_are_refused(lab):
    stop_in_the_middle(lab)
    toys = lab.folder / "toys.py"
    toys.write_text(
        toys.read_text(encoding="utf-8").replace("num_samples=120", "num_samples=126"), encoding="utf-8"
    )
    done = lab.run()
    assert done.code == 2, done
    assert "trained on other data or preprocessing" in done.err, done
    assert "Traceback" not in done.err, done
