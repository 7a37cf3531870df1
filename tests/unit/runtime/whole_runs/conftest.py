"""Three DNNs on two slots, so that one has to wait; and ways to end a start early."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcbal.checkpoint.reader import read_progress
from hpcbal.events.ensemble import EpochDone
from hpcbal.runtime.group import member
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.training import step
from hpcbal.training.keras import model as keras_model

RATES = {
    "a": {1: 4e5, 2: 7.8e5, 3: 1.1e6},
    "b": {1: 8e5, 2: 1.5e6, 3: 2e6},
    "c": {1: 8.2e5, 2: 1.55e6, 3: 2.1e6},
}


class Killed(BaseException):
    """A rank dies at once: in these runs no handler of the roles catches this."""


class Lab:
    """An ensemble in a folder; each `run` is one start."""

    epochs: Mapping[str, int] = {"a": 4, "b": 2, "c": 3}

    def __init__(self, inner: Any, hooks: dict[str, Callable[[int], Any]]) -> None:
        self._inner = inner
        self._hooks = hooks
        self.events: Callable[[str], list[Any]] = inner.events
        self.outcome: Callable[[], Any] = inner.outcome
        self.run: Callable[..., int] = inner.run
        self.load: Callable[[], Any] = inner.load
        self.use()

    @property
    def out(self) -> Path:
        return Path(self._inner.out)

    @property
    def sample_dtype(self) -> str:
        """Type of the samples in the ring of the last start."""
        return str(self._inner.ranks.facts.spec.sample.dtype)

    @staticmethod
    def dnn(name: str, epochs: int, **args: Any) -> dict[str, Any]:
        return {"name": name, "model": "in_process_toys:toy", "args": args, "stop": {"max_epochs": epochs}}

    def dnns(self, **args: Any) -> list[dict[str, Any]]:
        """The three, all with these arguments of their model."""
        return [self.dnn(name, epochs, **args) for name, epochs in self.epochs.items()]

    def use(self, paradigm: str = "global", output: str = "out", num_slots: int = 2, **sections: Any) -> None:
        """Write the configuration; the output goes to a directory of that name."""
        self._inner.out = self._inner.folder / output
        self._inner.num_slots = num_slots
        backend = {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": RATES}
        given = {"dnns": self.dnns(), "backend": backend, "schedule": {"paradigm": paradigm, "delta": "15%"}}
        self._inner.configure(**{**given, **sections})

    def at_steps(self, steps: Collection[int], act: Callable[[], None]) -> None:
        """Let models with the hook `act` call `act` in some of the training steps, counted from now on."""
        count = 0

        def act_in(number: int) -> None:
            nonlocal count
            if number > 0:
                count += 1
                if count in steps:
                    act()

        self._hooks["act"] = act_in

    def kill_at(self, step: int) -> None:
        """Let the rank of this training step die; the start must end with that."""

        def die() -> None:
            raise Killed

        self.at_steps([step], die)
        with pytest.raises(Killed):
            self.run()
        self.at_steps([], lambda: None)

    def kill_when(self, is_reached: Callable[[], bool]) -> None:
        """The same in the first training step in which `is_reached` is true."""
        is_dead = False

        def act(number: int) -> None:
            nonlocal is_dead
            if number > 0 and not is_dead and is_reached():
                is_dead = True
                raise Killed

        self._hooks["act"] = act
        with pytest.raises(Killed):
            self.run()
        self.at_steps([], lambda: None)

    def dies_after_lines(self, monkeypatch: pytest.MonkeyPatch, number: int) -> bool:
        """Let rank 0 die when it has written so many lines to the ledger; False if the run ends before."""
        num_written = 0

        def write(ledger: Ledger, line: Any, append: Any = Ledger.append, **options: Any) -> None:
            nonlocal num_written
            append(ledger, line, **options)
            num_written += 1
            if num_written == number:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "append", write)
            try:
                assert self.run() == 0
            except Killed:
                return True
        return False

    def kill_before_epoch(self, monkeypatch: pytest.MonkeyPatch, epoch: int) -> EpochDone:
        """Let rank 0 die in place of writing this epoch of the only DNN, which is to stop and has saved it.

        The DNN has the callback `in_process_toys:call` with the hook `ended`.

        Returns: the line that rank 0 did not write.
        """
        lost: list[EpochDone] = []

        def stop(ended: int) -> None:
            if ended == epoch:
                self._inner.ranks.signal(0)
                self.wait_for_stop(0)

        def write(ledger: Ledger, line: Any, append: Any = Ledger.append, **options: Any) -> None:
            if not (isinstance(line, EpochDone) and self.events("suspend-requested")):
                append(ledger, line, **options)
                return
            lost.append(line)
            deadline_s = time.monotonic() + 30.0
            while (saved := read_progress(self.out / "dnns" / line.dnn_id)[0]) is None or saved.epoch < epoch:
                assert time.monotonic() < deadline_s, "the epoch is not saved"
                time.sleep(0.001)
            raise Killed

        self._hooks["ended"] = stop
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "append", write)
            with pytest.raises(Killed):
                self.run()
        self._hooks["ended"] = lambda ended: None
        return lost[0]

    def hang_at(self, step: int) -> None:
        """Let rank 0 get a signal in this training step, which then lasts until the start has failed."""

        def hang() -> None:
            stop = self._inner.ranks.contexts[0].stop
            self._inner.ranks.signal(0)
            while stop.failure is None:
                time.sleep(0.01)

        self.at_steps([step], hang)
        try:
            self.run()
        finally:
            self.at_steps([], lambda: None)

    def stop_at(self, step: int, rank: int, **options: Any) -> None:
        """Let `rank` get a signal in or soon after this training step; the start must end with 75.

        A trainer gets it in a step of its own. For other ranks the step waits until the scheduler has heard
        of it, so that the run cannot end before. Step 0 is the building of a model, while groups are formed.
        """
        count = 0

        def is_reached(number: int) -> bool:
            nonlocal count
            count += number > 0
            return count >= step

        self.stop_when(is_reached, rank, **options)

    def stop_when(self, is_reached: Callable[[int], bool], rank: int, **options: Any) -> None:
        """The same in or soon after the first step in which `is_reached` is true.

        Args:
            is_reached: called by models with the hook `act` in each step, with the number of the step.
        """
        reported = False
        num_before = len(self.events("suspend-requested"))

        def act(number: int) -> None:
            nonlocal reported
            is_now = is_reached(number)
            is_trainer = rank in self._inner.ranks.roles.trainer_ranks
            me = importlib.import_module("in_process_toys").RANK.number
            if reported or not is_now or (is_trainer and me != rank):
                return
            reported = True
            self._inner.ranks.signal(rank)
            if not is_trainer:
                self.wait_for_stop(num_before)

        self._hooks["act"] = act
        assert self.run(**options) == 75
        self.at_steps([], lambda: None)

    def wait_for_stop(self, num_before: int) -> None:
        """Wait until the scheduler has heard of a signal.

        Args:
            num_before: stops in the ledger before the signal.
        """
        deadline_s = time.monotonic() + 30.0
        while len(self.events("suspend-requested")) == num_before:
            assert time.monotonic() < deadline_s, "the signal is not passed on"
            time.sleep(0.001)

    def stop_while_reading(self, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
        """Let a signal arrive when a trainer first reads a sample; the start must end with 75.

        Returns: how many samples each trainer rank has read.
        """
        toys = importlib.import_module("in_process_toys")
        num_read: Counter[int] = Counter()
        num_before = len(self.events("suspend-requested"))

        def read(points: Any, sample_id: int, read: Callable[..., Any] = toys.Points.read) -> Any:
            me = getattr(toys.RANK, "number", -1)
            if me in self._inner.ranks.roles.trainer_ranks:
                if not num_read:
                    self._inner.ranks.signal(1)
                num_read[me] += 1
                self.wait_for_stop(num_before)
                time.sleep(0.02)  # the scheduler is passing it on to all
            return read(points, sample_id)

        with monkeypatch.context() as patch:
            patch.setattr(toys.Points, "read", read)
            assert self.run() == 75
        return num_read

    def states(self) -> dict[str, tuple[str, int]]:
        """State and epochs of each DNN in the table of results."""
        from hpcbal.telemetry.views.results import read_results

        return {row.name: (row.state, row.epochs) for row in read_results(self.out / "results.csv")}

    @staticmethod
    def assert_same(got: Any, wanted: Any) -> None:
        """Weights, optimizer, passes and metrics of every DNN agree to 1e-12."""
        assert got.keys() == wanted.keys()
        for name, (history, arrays) in wanted.items():
            own_history, own_arrays = got[name]
            assert [record[:2] for record in own_history] == [record[:2] for record in history], name
            for mine, theirs in zip(own_history, history, strict=True):
                assert mine[2] == pytest.approx(theirs[2], rel=1e-12), name
            assert own_arrays.keys() == arrays.keys()
            for key, array in arrays.items():
                assert own_arrays[key] == pytest.approx(array, rel=1e-12, abs=1e-12), f"{name}/{key}"


@pytest.fixture
def lab(in_process: Any, hooks: dict[str, Callable[[int], Any]], monkeypatch: pytest.MonkeyPatch) -> Lab:
    for module in (member, step, keras_model):
        monkeypatch.setattr(module, "USER_ERRORS", Exception)  # lets `Killed` through
    return Lab(in_process, hooks)
