"""Whole jobs in one process: what several executors train together equals what one process trains alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from paramserver_apps import APPS, Ratings, mlr, ratings
from paramserver_job import Master, Rotation, SavedBlocks, Setup, layout_of, parameter_blocks, run_job

from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch, DataBlock
from hpcbal.paramserver.api.columns import Columns, IntArray, num_bytes_of
from hpcbal.paramserver.api.update import Parameters, Table, Updates
from hpcbal.paramserver.apps import MLR
from hpcbal.paramserver.apps.sources import ArraySource
from hpcbal.paramserver.engine import client
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import BlockMove, Event, Reconfigure, SaveRequested, StopRequested
from hpcbal.paramserver.worker.loading import EmulatedMachine, first_data
from hpcbal.paramserver.worker.samples import Cursor, WorkerSamples


def setup_of(name: str, workers: list[int], servers: list[int]) -> Setup:
    return Setup(APPS[name], workers, servers, mini_batch=20, epochs=3)


def check_equal(setup: Setup, master: Master, saved: SavedBlocks) -> None:
    """The job is the same as in one process: metrics of all epochs, tables, and states."""
    layout = setup.job().layout
    alone, metrics = train_alone(
        setup.make_app(),
        setup.epochs,
        mini_batch=setup.mini_batch,
        seed=setup.seed,
        num_data_blocks=setup.num_data_blocks,
        parameter_blocks=parameter_blocks(layout),
    )
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert master.manifest is not None
    number = master.manifest.number
    for record, wanted in zip(master.machine.history, metrics, strict=True):
        assert dict(record.metrics) == pytest.approx(wanted, rel=1e-10)
    for table, values in saved.tables(layout, number).items():
        np.testing.assert_allclose(values, alone.values[table], rtol=1e-10, atol=1e-12)
    for block in alone.data_blocks:
        for column, state in block.state.items():
            found = saved.blocks[number, "data", block.number][f"state/{column}"]
            np.testing.assert_allclose(found, state, rtol=1e-10)


@pytest.mark.parametrize("staleness", [0, 3])
def test_steps_without_samples_wait_for_the_updates_of_those_before(staleness: int) -> None:
    """Seven data blocks of one sample in each step: some steps have two, others none."""
    paced = dict.fromkeys((1, 2), EmulatedMachine(None, 1.0, 2e6))
    setup = Setup(APPS["mlr"], [1], [2], 1, 1, num_data_blocks=7, machines=paced, staleness=staleness)
    master, _ = run_job(setup)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert min(turn.samples for _, turn in master.turns) == 0
    assert [turn.step for _, turn in master.turns] == list(range(setup.job().steps))


@pytest.mark.parametrize("name", APPS)
@pytest.mark.parametrize(
    ("workers", "servers"), [([1], [2]), ([1, 2, 3], [4, 5]), ([1, 2], [1, 2])], ids=["1+1", "3+2", "both"]
)
def test_synchronous_training_equals_that_of_one_process(name: str, workers, servers) -> None:
    setup = setup_of(name, workers, servers)
    master, saved = run_job(setup)
    check_equal(setup, master, saved)
    assert sum(report.samples for _, report in master.turns) == 3 * setup.make_app().source.num_samples


@pytest.mark.parametrize("name", APPS)
def test_it_does_so_while_blocks_move(name: str) -> None:
    setup = replace(setup_of(name, [1, 2], [3, 4]), after=Rotation(2, 4), memory_bytes=20_000)
    master, saved = run_job(setup)
    check_equal(setup, master, saved)
    assert len(master.reconfigured) >= 3


class Tagged(App):
    """Every row holds its number and the samples so far: a pull that puts rows into the places of
    others is noticed at once."""

    NUM_ROWS, TAG = 240, 10**9

    def tables(self) -> list[Table]:
        return [Table("tags", self.NUM_ROWS, 8, "int64")]

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> IntArray:
        return np.repeat(self.TAG * rows[:, np.newaxis], 8, axis=1)

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        tags = parameters["tags"] // self.TAG
        assert (tags == np.arange(self.NUM_ROWS)[:, np.newaxis]).all(), "rows of other blocks"
        return {"tags": np.full((self.NUM_ROWS, 8), batch.num_samples)}

    def objective(self, batch: Batch, parameters: Parameters) -> dict[str, float]:
        return {"samples": float(batch.num_samples)}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return dict(sums)


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_pulled_rows_come_to_their_places_when_a_server_has_more_blocks_than_a_frame_names(
    monkeypatch: pytest.MonkeyPatch, staleness: int | None
) -> None:
    """Then a request is cut into several frames, of which some are answered in parts while blocks move."""
    monkeypatch.setattr(client, "MAX_ENTRIES", 3)
    setup = Setup(
        lambda: Tagged(ArraySource({"x": np.zeros(600)}, {})),
        [1, 2, 3],
        [4, 5],
        mini_batch=20,
        epochs=2,
        num_executors=5,
        staleness=staleness,
        num_data_blocks=15,
        num_parameter_blocks=24,
        after=Rotation(4, 5),
    )
    master, saved = run_job(setup)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert master.reconfigured
    assert master.manifest is not None
    tags = saved.tables(setup.job().layout, master.manifest.number)["tags"]
    wanted = Tagged.TAG * np.arange(Tagged.NUM_ROWS)[:, np.newaxis] + 2 * 600
    np.testing.assert_array_equal(tags, np.repeat(wanted, 8, axis=1))


@pytest.mark.parametrize("is_emulated", [False, True])
@pytest.mark.parametrize(("servers", "away"), [([3, 4], 1.0), ([1, 2], 0.5)], ids=["apart", "beside"])
def test_turns_count_what_their_worker_pulls_and_pushes(
    servers: list[int], away: float, is_emulated: bool
) -> None:
    """Not what a server on the same rank sends to other workers, nor what stays on the rank."""
    fast = EmulatedMachine(bytes_per_s=1e8)
    setup = Setup(
        lambda: Tagged(ArraySource({"x": np.zeros(80)}, {})),
        [1, 2],
        servers,
        mini_batch=20,
        epochs=2,
        num_executors=4,
        num_parameter_blocks=4,
        machines=dict.fromkeys(range(1, 5), fast) if is_emulated else {},
    )
    master, _ = run_job(setup)
    table_bytes = Tagged.NUM_ROWS * 8 * 8
    assert master.turns
    for _, turn in master.turns:
        assert turn.num_bytes == pytest.approx(2 * away * table_bytes, rel=0.1)  # and headers


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_turns_change_the_state_of_samples_while_their_block_is_copied(
    monkeypatch: pytest.MonkeyPatch, staleness: int | None
) -> None:
    """Links are so slow that the copy of a block takes several turns, and in `async` a block is not done with
    an epoch before the copy begins."""
    changed: list[int] = []
    remove = WorkerSamples.remove

    def recording(samples: WorkerSamples, number: int) -> tuple[DataBlock, Cursor, IntArray]:
        found = remove(samples, number)
        changed.append(len(found[2]))
        return found

    monkeypatch.setattr(WorkerSamples, "remove", recording)
    slow = EmulatedMachine(seconds_per_sample=1e-3, bytes_per_s=5e4)
    setup = replace(
        setup_of("ratings", [1, 2], [3, 4]),
        mini_batch=5 if staleness is None else 20,
        after=Rotation(2, 4, limit=6),
        machines=dict.fromkeys(range(1, 5), slow),
        staleness=staleness,
    )
    master, saved = run_job(setup)
    assert len(changed) >= 3
    assert max(changed) > 0
    if staleness == 0:
        check_equal(setup, master, saved)
    else:
        assert sum(report.samples for _, report in master.turns) == 3 * setup.make_app().source.num_samples


@pytest.mark.parametrize("event", [SaveRequested(), StopRequested("TERM")], ids=["save", "stop"])
def test_checkpoints_are_written_while_blocks_are_copied(event: Event) -> None:
    """A copy over these links takes longer than the job has left."""
    slow = EmulatedMachine(bytes_per_s=5e3)
    setup = replace(setup_of("ratings", [1, 2], [3, 4]), machines=dict.fromkeys(range(1, 5), slow))
    asked: list[Event] = [
        Reconfigure((BlockMove("data", (0,), 1, 2), BlockMove("parameters", (0,), 3, 4)), "test"),
        event,
    ]

    def after(master: Master, report: messages.Report) -> list[Event]:
        return [asked.pop(0)] if asked and isinstance(report, messages.TurnDone) else []

    master, saved = run_job(replace(setup, after=after))
    assert not asked
    assert master.end is not None
    if master.end.outcome == "suspended":
        master, saved = run_job(replace(setup, resume=master.manifest), saved)
    check_equal(setup, master, saved)


@pytest.mark.timeout(120)
def test_a_stop_waits_for_no_block_of_an_objective_and_the_next_start_computes_all_of_it() -> None:
    """One worker has reported its blocks, the other one is at its first, until the job is over."""
    at_its_first, stopped, is_over = threading.Event(), threading.Event(), threading.Event()
    begun = list[int]()

    class Slow(MLR):
        def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
            block = int(batch.samples[0]) // 15
            begun.append(block)
            if block == 1:
                at_its_first.set()
                assert is_over.wait(60.0)
            elif block == 4:  # the last one of the worker that reports
                assert at_its_first.wait(60.0)
            return super().objective(batch, parameters)

    def slow() -> App:
        return Slow(mlr().source, learning_rate=0.5, l2=0.01)

    def after(master: Master, report: messages.Report) -> list[Event]:
        if isinstance(report, messages.Evaluated) and report.data and not stopped.is_set():
            master.perform(StopRequested("TERM"))
            stopped.set()
        return []

    setup = replace(setup_of("mlr", [1, 2], [3]), make_app=slow, after=after)
    master, saved = run_job(setup)
    is_over.set()
    assert master.end is not None
    assert master.end.outcome == "suspended"
    assert master.machine.history == ()
    assert sorted(begun) == [0, 1, 2, 4]
    master, saved = run_job(replace(setup, resume=master.manifest), saved)
    assert sorted(begun) == sorted([0, 1, 2, 4, *[0, 1, 2, 3, 4, 5] * setup.epochs])
    check_equal(setup, master, saved)


def test_little_memory_stops_no_job_whatever_takes_the_room() -> None:
    """A push may wait for the room of a pull. Ten jobs, because messages meet in another order each time."""
    setup = replace(setup_of("ratings", [1, 2], [3, 4]), memory_bytes=20_000)
    for _ in range(10):
        master, saved = run_job(replace(setup, after=Rotation(2, 4)))
    check_equal(setup, master, saved)


@pytest.mark.parametrize("name", APPS)
def test_a_job_goes_on_from_its_checkpoint_with_other_executors(name: str) -> None:
    first = replace(setup_of(name, [1], [2]), epochs=2)
    master, saved = run_job(first)
    second = replace(setup_of(name, [1, 2], [3, 1]), resume=master.manifest)
    master, saved = run_job(second, saved)
    check_equal(second, master, saved)


@pytest.mark.parametrize("staleness", [1, None])
def test_other_consistencies_take_every_sample_once_an_epoch_and_converge(staleness: int | None) -> None:
    setup = replace(
        setup_of("mlr", [1, 2], [3]), epochs=6, staleness=staleness, after=Rotation(3, 3), num_executors=4
    )
    master, _ = run_job(setup)
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert sum(report.samples for _, report in master.turns) == 6 * 90
    losses = [record.metrics["loss"] for record in master.machine.history]
    assert losses[-1] < 0.9 * losses[0]
    assert len(master.reconfigured) >= 3


def test_emulated_machines_take_the_time_of_their_compute_and_their_links() -> None:
    slow = EmulatedMachine(seconds_per_sample=1e-4, speed=0.5, bytes_per_s=1e6)
    setup = replace(setup_of("mlr", [1, 2], [3]), machines={1: slow, 3: EmulatedMachine(bytes_per_s=2e6)})
    master, saved = run_job(setup)
    check_equal(setup, master, saved)
    of_slow = [report for rank, report in master.turns if rank == 1 and report.samples]
    assert of_slow
    for report in of_slow:
        assert report.compute_s >= report.samples * 2e-4
        assert report.pull_s >= 8 * 24 / 1e6  # the model's bytes over its link
        assert report.push_s >= 8 * 24 / 1e6


class Failing(MLR):
    """Fails in the second epoch."""

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        if batch.epoch == 1:
            raise ZeroDivisionError("no such number")
        return super().compute(batch, parameters)


class Misfit(MLR):
    """Returns updates of a wrong shape."""

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        return {"weights": np.zeros((2, 2))}


class FailingUpdate(MLR):
    """Fails at the server."""

    def update(self, table: str, values: np.ndarray, deltas: np.ndarray) -> None:
        raise KeyError(table)


class Leaving(MLR):
    """Ends the process, as scripts do."""

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        raise SystemExit(7)


class FewStates(MLR):
    """Keeps a state of one sample for each data block."""

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        return {"seen": np.zeros(1)}


@pytest.mark.parametrize(
    ("app", "says"),
    [
        (Leaving, r"Leaving\.compute: \S*test_jobs\.py:\d+: SystemExit: 7"),
        (FewStates, r"initial_state: column 'seen': got 1 samples, expected \d+"),
        (Failing, r"Failing\.compute: \S*test_jobs\.py:\d+: ZeroDivisionError: no such number"),
        (Misfit, r"got deltas of shape \(2, 2\), expected \(7, 3\)"),
        (FailingUpdate, r"FailingUpdate\.update\('(bias|weights)'\): \S*test_jobs\.py:\d+: KeyError"),
    ],
)
@pytest.mark.parametrize("moves", [False, True])
def test_an_app_that_fails_ends_the_job_with_its_reason(
    caplog: pytest.LogCaptureFixture, app: type[MLR], says: str, moves: bool
) -> None:
    """Also while blocks are copied over slow links."""

    def make() -> App:
        return app(mlr().source)

    setup = replace(setup_of("mlr", [1, 2], [3]), make_app=make, num_executors=4)
    if moves:
        slow = EmulatedMachine(bytes_per_s=2e4)
        request = Reconfigure(
            (BlockMove("data", (0, 2), 1, 2), BlockMove("parameters", (0, 1, 2), 3, 4)), "test"
        )
        asked: list[Event] = [request]
        setup = replace(
            setup,
            machines=dict.fromkeys(range(1, 5), slow),
            after=lambda master, report: [asked.pop()] if asked and master.machine.can_reconfigure else [],
        )
    master, _ = run_job(setup)
    assert master.end is not None
    assert (master.end.outcome, master.end.cause) == ("failed", "app")
    assert re.search(says, master.end.detail), master.end.detail
    assert any(record.exc_info for record in caplog.records), "the log has the traceback"


def test_blocks_that_do_not_fit_end_the_job_before_it_starts() -> None:
    master, _ = run_job(replace(setup_of("mlr", [1, 2], [3]), memory_bytes=2000))
    assert master.end is not None
    assert (master.end.outcome, master.end.exit_code) == ("suspended", 2)  # the file can be mended
    assert re.match(r"memory_per_rank: rank [12] got 2,000 bytes, but its blocks take \d", master.end.detail)
    assert not master.turns


def test_in_sync_servers_need_room_for_rows_as_they_were_before_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ratings, "NUM_ITEMS", 3000)
    setup = setup_of("ratings", [1, 2], [3])
    values = sum(table.num_bytes for table in setup.make_app().tables())
    limit = values + 20_000
    assert limit < 2 * values
    master, _ = run_job(replace(setup, memory_bytes=limit))
    assert master.end is not None
    assert re.match(rf"memory_per_rank: rank 3 got {limit:,} bytes, but its blocks take", master.end.detail)
    master, _ = run_job(replace(setup, memory_bytes=limit, staleness=2))
    assert master.end is not None
    assert master.end.outcome == "done"


def test_blocks_that_come_beyond_the_limit_end_the_job_once_it_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers have three and two of five blocks, with room for no more; then the first gets a fourth one."""
    monkeypatch.setattr(Ratings, "NUM_ITEMS", 3000)
    setup = setup_of("ratings", [1, 2], [3, 4])
    values = sum(table.num_bytes for table in setup.make_app().tables())
    asked: list[Event] = [SaveRequested(), Reconfigure((BlockMove("parameters", (1,), 4, 3),), "test")]

    def next_event(master: Master, report: messages.Report) -> list[Event]:
        return [asked.pop()] if asked and master.machine.can_reconfigure else []

    limit = 3 * values // 5 + 10_000  # three of five blocks at one server, two at the other
    master, _ = run_job(replace(setup, memory_bytes=limit, staleness=2, epochs=30, after=next_event))
    assert master.end is not None
    assert re.match(rf"memory_per_rank: rank 3 got {limit:,} bytes, but its blocks take", master.end.detail)
    assert (master.end.outcome, master.end.exit_code) == ("suspended", 2)
    assert master.reconfigured
    assert master.manifest is not None, "nothing is lost"


def test_a_turn_whose_rows_do_not_fit_ends_the_job_and_says_what_to_do() -> None:
    """The blocks fit, and so do messages; a turn of all samples needs more rows than there is room for."""
    setup = replace(setup_of("ratings", [1, 2], [3]), mini_batch=10_000)
    fits, _ = run_job(setup)
    assert fits.end is not None
    assert fits.end.outcome == "done"
    job = setup.job()
    blocks = [first_data(job, number) for number in range(0, setup.num_data_blocks, 2)]  # of a worker
    held = sum(num_bytes_of(block.columns) + num_bytes_of(block.state) for block in blocks)
    master, _ = run_job(replace(setup, memory_bytes=held + 1000))
    assert master.end is not None
    assert (master.end.outcome, master.end.exit_code) == ("suspended", 2)
    says = (
        r"memory_per_rank: a turn keeps [\d,]+ bytes of rows and updates, but blocks and dense tables leave "
    )
    assert re.match(says + r"1,000; lower mini_batch", master.end.detail), master.end.detail


def test_blocks_for_the_oracle_are_those_of_the_layout() -> None:
    layout = layout_of(ratings(), 5)
    rows = np.concatenate(parameter_blocks(layout)(layout.tables[0]))
    assert sorted(rows.tolist()) == list(range(Ratings.NUM_ITEMS))
