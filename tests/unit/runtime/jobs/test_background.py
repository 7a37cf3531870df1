"""Jobs are loaded one by one; one that is slow or hangs keeps no other out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hpcbal.runtime.jobs.background import PATIENCE_S, Loader


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Loads:
    """Loads that end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates = {name: threading.Event() for name in "abc"}
        self.notes: list[str] = []
        self.clock = Clock()
        self.loader = Loader(self.load, self.notes.append, self.clock)

    def load(self, name: str) -> str:
        self.begun.append(name)
        assert self.gates[name].wait(20)
        if name == "b":
            raise ValueError("no data")
        return name.upper()

    def end(self, name: str) -> None:
        """Let a load end, and wait until it has."""
        self.gates[name].set()
        for thread in threading.enumerate():
            if thread.name == f"load {name}":
                assert thread.daemon
                thread.join(20)


@pytest.fixture
def loads() -> Iterator[Loads]:
    made = Loads()
    yield made
    for gate in made.gates.values():
        gate.set()


def test_jobs_that_arrive_together_are_loaded_in_turn_and_start_together(loads: Loads) -> None:
    for name in "abc":
        loads.loader.add(name)
    for name in "abc":
        assert loads.loader.take() == {}
        assert loads.loader.take() == {}
        loads.end(name)
    assert loads.begun == ["a", "b", "c"]
    found = loads.loader.take()
    assert (found["a"].result(), found["c"].result()) == ("A", "C")
    with pytest.raises(ValueError, match="no data"):
        found["b"].result()
    assert loads.loader.take() == {}
    assert not loads.notes


def test_a_load_that_hangs_keeps_no_other_job_out(loads: Loads) -> None:
    loads.loader.add("a")
    loads.loader.add("c")
    assert loads.loader.take() == {}
    loads.clock.now += PATIENCE_S
    assert loads.loader.take() == {}
    loads.end("c")
    assert list(loads.loader.take()) == ["c"]
    assert loads.notes == ["job a: its data is still being opened; other jobs start without it"]
    loads.end("a")
    assert list(loads.loader.take()) == ["a"]


def test_a_stream_of_arrivals_keeps_no_loaded_job_out(loads: Loads) -> None:
    loads.loader.add("a")
    loads.loader.take()
    loads.end("a")
    loads.loader.add("c")
    assert loads.loader.take() == {}
    assert loads.loader.take() == {}
    loads.clock.now += PATIENCE_S / 2
    loads.loader.add("b")
    assert loads.loader.take() == {}
    loads.clock.now += PATIENCE_S / 2
    loads.end("c")
    loads.loader.take()  # begins the next one
    assert sorted(loads.loader.take()) == ["a", "c"]
