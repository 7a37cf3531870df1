"""First updates and objectives of several data blocks at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from paramserver_apps import Documents, documents, ratings
from paramserver_job import Setup, parameter_blocks, run_job

from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch, DataBlock
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Parameters, Update, Updates
from hpcbal.paramserver.engine.client import ParameterClient, StartedPull
from hpcbal.paramserver.worker.samples import WorkerSamples
from hpcbal.paramserver.worker.several_blocks import UpdateSum, bytes_of, size_factor
from hpcbal.paramserver.worker.worker import BEFORE_ALL_STEPS

NUM_ROWS = {"dense": 7, "sparse": 9}


@st.composite
def block_updates(draw: st.DrawFn) -> list[dict[str, Update]]:
    """Of some blocks, to some rows of two tables, or to all rows of the dense one."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        updates = {}
        for name, num_rows in NUM_ROWS.items():
            chosen = draw(st.sets(st.integers(0, num_rows - 1)))
            rows: IntArray | None = np.array(sorted(chosen), np.int64)
            if name == "dense" and draw(st.booleans()):
                rows = None
            count = num_rows if rows is None else len(chosen)
            values = draw(st.lists(st.integers(-99, 99), min_size=2 * count, max_size=2 * count))
            updates[name] = Update(np.array(values, np.int64).reshape(count, 2), rows)
        for name in draw(st.sets(st.sampled_from(sorted(NUM_ROWS)), max_size=1)):
            del updates[name]
        found.append(updates)
    return found


def applied(updates: list[dict[str, Update]]) -> dict[str, NDArray[Any]]:
    tables = {name: np.zeros((num_rows, 2), np.int64) for name, num_rows in NUM_ROWS.items()}
    for name, update in itertools.chain.from_iterable(each.items() for each in updates):
        tables[name][slice(None) if update.rows is None else update.rows] += update.deltas
    return tables


def summed(updates: list[dict[str, Update]], times: float) -> list[dict[str, Update]]:
    total = UpdateSum(times)
    return [each for each in (*map(total.add, updates), total.take()) if each]


@given(block_updates(), st.floats(1.0, 3.0))
def test_sums_change_tables_as_all_updates_do(updates: list[dict[str, Update]], times: float) -> None:
    before = [{name: update.deltas.copy() for name, update in each.items()} for each in updates]
    sums = summed(updates, times)
    for name, values in applied(updates).items():
        np.testing.assert_array_equal(applied(sums)[name], values)
    assert len(sums) <= len(updates)
    assert max(map(bytes_of, sums), default=0) <= times * max(map(bytes_of, updates))
    for each in sums:
        for update in each.values():
            assert update.rows is None or (np.diff(update.rows) > 0).all()
    for each, deltas in zip(updates, before, strict=True):  # what apps may use again
        assert all((each[name].deltas == values).all() for name, values in deltas.items())


def test_updates_of_the_same_rows_become_one_and_those_of_others_as_few_as_there_is_memory_for() -> None:
    def block(*rows: int) -> dict[str, Update]:
        return {"sparse": Update(np.ones((len(rows), 2)), np.array(rows))}

    same = [block(1, 4, 5)] * 5
    (one,) = summed(same, 1.0)
    assert one["sparse"].rows is not None
    assert one["sparse"].rows.tolist() == [1, 4, 5]
    assert (one["sparse"].deltas == 5.0).all()
    others = [block(3 * i, 3 * i + 1, 3 * i + 2) for i in range(5)]
    assert [len(each["sparse"].deltas) for each in summed(others, 1.0)] == [3] * 5
    assert [len(each["sparse"].deltas) for each in summed(others, 2.0)] == [6, 6, 3]


def test_memory_of_a_turn_is_used_as_far_as_it_goes() -> None:
    assert size_factor(0.0, 100) == 1.0
    assert size_factor(25.0, 100) == 1.25
    assert size_factor(4000.0, 100) == 2.0


class Largest(Documents):
    """Updates that do not add up."""

    def update(self, table: str, values: NDArray[Any], deltas: NDArray[Any]) -> None:
        np.maximum(values, deltas, out=values)

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        return {}

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        return {"largest": float(parameters["counts"].sum())}


def largest() -> App:
    return Largest(documents().source)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts first pushes, and pulls for objectives, of all workers."""
    found: Counter[str] = Counter()
    push, pull = ParameterClient.push, ParameterClient.start_pull

    def counted_push(self: ParameterClient, updates: Any, then: Any, step: int = 0) -> None:
        found["first"] += step == BEFORE_ALL_STEPS
        push(self, updates, then, step)

    def counted_pull(
        self: ParameterClient, needs: Any, step: int = 0, share: int = 0, *, keeps_dense: bool = False
    ) -> StartedPull:
        found["objective"] += share == 0
        return pull(self, needs, step, share, keeps_dense=keeps_dense)

    monkeypatch.setattr(ParameterClient, "push", counted_push)
    monkeypatch.setattr(ParameterClient, "start_pull", counted_pull)
    return found


@pytest.mark.parametrize(
    ("make_app", "first", "objectives"), [(documents, 2, 3 * 2), (largest, 6, 3 * 2), (ratings, 0, 3 * 2)]
)
def test_blocks_of_a_worker_push_and_pull_together(
    calls: Counter[str], make_app: Callable[[], App], first: int, objectives: int
) -> None:
    """Two workers with three blocks each, three epochs; all blocks need the same rows."""
    setup = Setup(make_app, [1, 2], [1, 2], 90, 3)
    master, _ = run_job(setup)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert calls == Counter(first=first, objective=objectives)
    _, metrics = train_alone(
        make_app(),
        3,
        mini_batch=90,
        seed=setup.seed,
        num_data_blocks=6,
        parameter_blocks=parameter_blocks(setup.job().layout),
    )
    for record, wanted in zip(master.machine.history, metrics, strict=True):
        assert dict(record.metrics) == pytest.approx(wanted, rel=1e-10)


def test_an_objective_pulls_as_many_blocks_at_once_as_there_is_memory_for(calls: Counter[str]) -> None:
    """80 samples of three items each, two in a block, and turns of one sample: at most half as many rows more
    than the largest of some blocks has."""
    setup = Setup(ratings, [1], [1], 1, 1, num_data_blocks=40)
    master, _ = run_job(setup)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    items = ratings().source.read(np.arange(80))["items"].reshape(40, 6)
    num_pulls, together, largest = 0, set[int](), 0
    for block in items:
        rows = set(block.tolist())
        largest = max(largest, len(rows))
        if not together or len(together | rows) > 1.5 * largest:
            num_pulls, together, largest = num_pulls + 1, set(), len(rows)
        together |= rows
    assert calls["objective"] == num_pulls
    assert num_pulls < 40


def test_a_job_with_a_limit_of_its_own_keeps_no_more_rows_than_for_one_block(calls: Counter[str]) -> None:
    master, _ = run_job(Setup(ratings, [1], [1], 80, 1, num_data_blocks=40, memory_bytes=100_000))
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    limited, calls["objective"] = calls["objective"], 0
    run_job(Setup(ratings, [1], [1], 80, 1, num_data_blocks=40))
    assert calls["objective"] < limited <= 40


@pytest.mark.parametrize(("make_app", "first", "objectives"), [(documents, 6, 2), (ratings, 0, 6)])
def test_blocks_on_disk_push_and_pull_one_by_one(
    calls: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    make_app: Callable[[], App],
    first: int,
    objectives: int,
) -> None:
    """Their memory is for one at a time, and each is read once."""
    read: list[int] = []
    whole = WorkerSamples.whole

    def counted(self: WorkerSamples, numbers: Iterable[int] | None = None) -> Iterator[DataBlock]:
        for block in whole(self, numbers):
            read.append(block.number)
            yield block

    monkeypatch.setattr(WorkerSamples, "are_in_memory", False)
    monkeypatch.setattr(WorkerSamples, "whole", counted)
    master, _ = run_job(Setup(make_app, [1, 2], [1, 2], 90, 1))
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert calls == Counter(first=first, objective=objectives)
    times = 3 if first else 2  # one of them for the checkpoint
    assert sorted(read) == sorted(times * list(range(6)))


class Reusing(Documents):
    """Returns the same arrays for every block."""

    def initial_updates(self, batch: Batch) -> Updates:
        self.counts = getattr(self, "counts", np.zeros((12, 2)))
        self.counts[:] = self._counts(batch)
        return {"counts": self.counts}


def test_apps_may_use_the_arrays_of_first_updates_again() -> None:
    def metrics(make_app: Callable[[], App]) -> list[dict[str, float]]:
        master, _ = run_job(Setup(make_app, [1, 2], [1, 2], 90, 2))
        assert master.end is not None
        assert master.end.outcome == "done", master.end
        return [dict(record.metrics) for record in master.machine.history]

    assert metrics(lambda: Reusing(documents().source)) == metrics(documents)
