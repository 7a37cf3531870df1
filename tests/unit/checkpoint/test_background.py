"""The writing thread: order, dropping of outdated states, errors, reports."""

import threading

import numpy as np
import pytest

from hpcbal.checkpoint import background
from hpcbal.checkpoint.background import BackgroundWriter
from hpcbal.checkpoint.reader import read_progress
from hpcbal.checkpoint.state import TrainingState
from hpcbal.errors import HpcbalError, OutputError
from hpcbal.events.history import Position


def state_of(epoch: int, name: str = "dnn") -> TrainingState:
    return TrainingState(name, epoch, Position(epoch, 7), (), {"w": np.full(10, epoch)})


@pytest.fixture
def gate(monkeypatch):
    """Blocks the thread in its first write until it is set."""
    opened, entered = threading.Event(), threading.Event()
    write = background.write_checkpoint

    def wait_and_write(*args, **kwargs):
        entered.set()
        assert opened.wait(20)
        return write(*args, **kwargs)

    monkeypatch.setattr(background, "write_checkpoint", wait_and_write)
    opened.entered = entered
    return opened


def test_a_submitted_state_is_written_and_reported_once(tmp_path):
    with BackgroundWriter() as writer:
        writer.submit(tmp_path, state_of(3))
        assert writer.wait(20)
        (done,) = writer.poll()
        assert (done.name, done.epoch, done.position, done.error) == ("dnn", 3, Position(3, 7), None)
        assert writer.poll() == []
        assert not writer.busy
    assert read_progress(tmp_path)[0].epoch == 3


def test_a_newer_state_of_the_same_dnn_replaces_a_waiting_one(tmp_path, gate):
    with BackgroundWriter() as writer:
        writer.submit(tmp_path / "a", state_of(1, "a"))
        assert gate.entered.wait(20)
        for epoch in (2, 3, 4):
            writer.submit(tmp_path / "a", state_of(epoch, "a"))
        writer.submit(tmp_path / "b", state_of(9, "b"))
        assert writer.busy
        gate.set()
        assert writer.wait(20)
        assert [(done.name, done.epoch) for done in writer.poll()] == [("a", 1), ("a", 4), ("b", 9)]


def test_a_final_state_is_never_dropped(tmp_path, gate):
    with BackgroundWriter() as writer:
        writer.submit(tmp_path, state_of(1))
        assert gate.entered.wait(20)
        writer.submit(tmp_path, state_of(2), final=True)
        writer.submit(tmp_path, state_of(3))
        gate.set()
        assert writer.wait(20)
        assert [done.epoch for done in writer.poll()] == [1, 2, 3]


def test_close_writes_waiting_states(tmp_path, gate):
    writer = BackgroundWriter()
    writer.submit(tmp_path, state_of(1))
    assert gate.entered.wait(20)
    writer.submit(tmp_path, state_of(2), final=True)
    gate.set()
    writer.close()
    assert [done.epoch for done in writer.poll()] == [1, 2]
    with pytest.raises(HpcbalError, match="closed"):
        writer.submit(tmp_path, state_of(3))


def test_an_error_is_reported_with_its_dnn_and_the_thread_continues(tmp_path):
    (tmp_path / "file").write_text("")
    with BackgroundWriter() as writer:
        writer.submit(tmp_path / "file" / "a", state_of(1, "a"))
        writer.submit(tmp_path / "b", state_of(1, "b"))
        assert writer.wait(20)
        failed, written = writer.poll()
    assert failed.name == "a"
    assert isinstance(failed.error, OutputError)
    assert (written.name, written.error) == ("b", None)


def test_a_bug_is_reported_too(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(background, "write_checkpoint", fail)
    with BackgroundWriter() as writer:
        writer.submit(tmp_path, state_of(1))
        assert writer.wait(20)
        (done,) = writer.poll()
    assert type(done.error) is HpcbalError
    assert "ZeroDivisionError" in str(done.error)


def test_wait_returns_false_after_the_timeout(tmp_path, gate):
    with BackgroundWriter() as writer:
        writer.submit(tmp_path, state_of(1))
        assert not writer.wait(0.01)
        gate.set()
        assert writer.wait(20)


def test_without_a_submission_no_thread_is_started():
    before = threading.active_count()
    with BackgroundWriter() as writer:
        assert writer.wait(0)
        assert threading.active_count() == before
