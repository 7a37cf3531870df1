"""Simulated jobs on parameter servers: closed forms, bytes as those of the engine, and changes in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paramserver_apps import APPS
from paramserver_job import Setup, run_job

from hpcbal.errors import HpcbalError, InputError
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.engine.wire import ENTRY_BYTES, HEADER_BYTES
from hpcbal.paramserver.master.events import BlockMove, Reconfigure
from hpcbal.paramserver.worker.loading import EmulatedMachine
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.run import simulate_job, simulate_roles

BANDWIDTH = 1e6
MODEL_S = 0.4
"""Time of the model over a link."""
NEARLY = 2e-3
"""Relative: closed forms leave out headers."""

TABLE = Table("model", 1000, 50)
assert TABLE.num_bytes == MODEL_S * BANDWIDTH


def job_of(staleness: int | None, **keys: Any) -> ServingJob:
    job = ServingJob(240, 24, 10 if staleness is None else 40, staleness, (TABLE,), (12,), max_epochs=5)
    return replace(job, **keys)


def machines_of(number: int, seconds_per_sample: float = 0.05) -> list[ServingMachine]:
    return [ServingMachine(seconds_per_sample, BANDWIDTH)] * number


HEADERS = HEADER_BYTES + 12 * ENTRY_BYTES
"""Of a frame that names all blocks of the table."""


@pytest.mark.parametrize("staleness", [None, 0, 2])
def test_one_worker_and_one_server_take_turns(staleness: int | None) -> None:
    job = job_of(staleness)
    turns = 240 // job.mini_batch
    run = simulate_roles(job, machines_of(2), 1, 1)
    compute_s = 240 * 0.05
    assert run.steady_epoch_s == pytest.approx(compute_s + turns * 2 * MODEL_S, rel=NEARLY)


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 6])
def test_one_worker_pulls_and_pushes_at_the_speed_of_its_own_link(servers: int) -> None:
    run = simulate_roles(job_of(None), machines_of(1 + servers), 1, servers)
    assert run.steady_epoch_s == pytest.approx(240 * 0.05 + 24 * 2 * MODEL_S, rel=NEARLY)


@pytest.mark.parametrize("seconds_per_sample", [0.001, 0.05, 1.0])
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (4, 1), (8, 1), (6, 2), (8, 4), (3, 3)])
def test_a_synchronous_step_ends_with_the_worker_that_is_served_last(
    workers: int, servers: int, seconds_per_sample: float
) -> None:
    """Answers leave one after the other; each worker computes when its own has come, and pushes."""
    job = job_of(0, num_samples=288, mini_batch=48)  # every step takes two samples of each data block
    run = simulate_roles(job, machines_of(workers + servers, seconds_per_sample), workers, servers)
    compute_s = 48 / workers * seconds_per_sample
    model_s = MODEL_S + 12 * ENTRY_BYTES / BANDWIDTH  # its blocks are named
    step_s = compute_s + 2 * model_s + (workers - 1) * model_s / servers
    assert run.steady_epoch_s == pytest.approx(6 * step_s, rel=NEARLY)


@pytest.mark.parametrize(("workers", "servers"), [(8, 1), (12, 1), (12, 2)])
def test_asynchronous_workers_keep_a_server_busy_both_ways(workers: int, servers: int) -> None:
    run = simulate_roles(job_of(None), machines_of(workers + servers, 0.001), workers, servers)
    busy_s = 24 * MODEL_S / servers
    assert run.steady_epoch_s == pytest.approx(busy_s, rel=0.02)


@pytest.mark.parametrize(("num_slow", "num_fast"), [(1, 2), (3, 1), (4, 4)])
def test_without_a_barrier_slow_links_hold_up_nobody_else(num_slow: int, num_fast: int) -> None:
    """A server sends copies to slow workers: the pushes of fast ones do not wait until these have come."""
    slow, fast = ServingMachine(0.01, BANDWIDTH / 10), ServingMachine(0.01, BANDWIDTH)
    machines = [slow] * num_slow + [fast] * num_fast + [ServingMachine(0.01, 100 * BANDWIDTH)]
    slow_turn_s, fast_turn_s = 0.1 + 20 * MODEL_S, 0.1 + 2 * MODEL_S
    turns = round(slow_turn_s / fast_turn_s)
    data = [
        *range(1, num_slow + 1),
        *[rank for rank in range(num_slow + 1, len(machines)) for _ in range(turns)],
    ]
    job = job_of(None, num_samples=10 * len(data), num_data_blocks=len(data))
    run = simulate_job(job, machines, data, [len(machines)] * 12)
    assert run.steady_epoch_s == pytest.approx(turns * fast_turn_s, rel=0.02)


def test_a_slow_processor_holds_a_server_up() -> None:
    machines = [*machines_of(8, 0.001), ServingMachine(0.001, BANDWIDTH, service_s_per_byte=2 / BANDWIDTH)]
    run = simulate_roles(job_of(None), machines, 8, 1)
    # It answers and applies one after the other.
    assert run.steady_epoch_s == pytest.approx(24 * 2 * 2 * MODEL_S, rel=0.02)


def test_delays_make_every_turn_longer() -> None:
    without = simulate_roles(job_of(0), machines_of(3), 2, 1).steady_epoch_s
    steps, turn_s = 6, 0.03
    run = simulate_roles(job_of(0), machines_of(3), 2, 1, Delays(turn_s=turn_s))
    assert run.steady_epoch_s - without == pytest.approx(steps * turn_s, rel=NEARLY)
    # A request, its answer, a push and its acknowledgement are sent and noticed; the master answers.
    delays = Delays(send_s=0.005, notice_s=0.01, control_s=0.02)
    delayed = simulate_roles(job_of(0), machines_of(3), 2, 1, delays)
    assert 0.5 < (delayed.steady_epoch_s - without) / (steps * (4 * 0.015 + 2 * 0.02)) < 2


@pytest.mark.parametrize("staleness", [None, 0, 1])
def test_every_sample_is_trained_once_in_an_epoch_and_no_byte_is_lost(staleness: int | None) -> None:
    job = job_of(staleness, num_samples=247, objective_every=2)
    run = simulate_roles(job, machines_of(7), 5, 2)
    assert sum(turn.report.samples for turn in run.turns) == 5 * 247
    assert sum(run.bytes_in.values()) == sum(run.bytes_out.values())
    turns = sum(turn.report.samples > 0 for turn in run.turns)
    pulls = turns + 3 * 5  # of turns, and of each worker for the objective after epochs 2, 4 and 5
    payloads = (turns + pulls) * TABLE.num_bytes
    frames = (2 * turns + 2 * pulls) * 2  # two servers
    named = frames - 2 * turns  # acknowledgements name no blocks, others half of the twelve
    headers = frames * HEADER_BYTES + named * 6 * ENTRY_BYTES
    assert sum(run.bytes_out.values()) == payloads + headers
    assert [epoch.has_objective for epoch in run.epochs] == [False, True, False, True, True]


def test_a_turn_moves_as_many_bytes_as_on_the_engine() -> None:
    paced = EmulatedMachine(None, 1.0, 1e9)
    machines = dict.fromkeys(range(1, 6), paced)
    setup = Setup(APPS["mlr"], [1, 2, 3], [4, 5], mini_batch=20, epochs=2, machines=machines)
    master, _ = run_job(setup)
    engine = setup.job()
    tables = engine.app.tables()
    job = ServingJob(
        engine.cut.num_samples,
        setup.num_data_blocks,
        20,
        0,
        tuple(tables),
        tuple(len(engine.layout.blocks_of(table.name)) for table in tables),
        max_epochs=2,
    )
    owners = master.machine.owners("data"), master.machine.owners("parameters")
    run = simulate_job(job, machines_of(5), *owners)
    found = {(t.executor, t.report.step): t.report for t in run.turns}
    assert len(master.turns) == len(found) == 3 * 2 * engine.steps
    for rank, turn in master.turns:
        same = found[rank, turn.step]
        assert (turn.data_blocks, turn.samples) == (same.data_blocks, same.samples)
        assert turn.num_bytes == same.num_bytes


def test_sparse_tables_move_the_rows_that_samples_need() -> None:
    table = Table("words", 1000, 50, access="sparse")
    job = job_of(0, tables=(table,), rows_per_sample={"words": 5.0})
    turn = simulate_roles(job, machines_of(3), 2, 1).turns[0].report
    rows = 5 * turn.samples
    headers = 3 * (HEADER_BYTES + 12 * ENTRY_BYTES)  # a request, its answer, a push
    assert turn.num_bytes == headers + rows * (8 + table.row_bytes) * 2


def test_the_objective_is_part_of_its_epoch() -> None:
    run = simulate_roles(job_of(0, objective_every=2), machines_of(2), 1, 1)
    seconds = run.epoch_seconds
    # The model, once for all 24 data blocks.
    assert seconds[1] - seconds[2] == pytest.approx(MODEL_S, rel=NEARLY)


@pytest.mark.parametrize(
    ("rows_needed", "num_pulls", "rows"),
    [
        ({"rows_per_sample": {"words": 5.0}}, 12, 12 * 100),  # 50 of a block of ten samples, 100 of two
        ({"turn_rows": {"words": [(10.0, 600.0), (20.0, 900.0), (30.0, 1000.0)]}}, 1, 1000),
    ],
)
def test_the_objective_pulls_rows_of_sparse_tables_for_several_data_blocks(
    rows_needed: dict[str, Any], num_pulls: int, rows: int
) -> None:
    """At most twice the rows of a block at once."""
    table = Table("words", 1000, 50, access="sparse")
    job = job_of(0, tables=(table,), objective_every=2, **rows_needed)
    seconds = simulate_roles(job, machines_of(2), 1, 1).epoch_seconds
    rows *= 8 + table.row_bytes
    headers = num_pulls * 2 * (HEADER_BYTES + 12 * ENTRY_BYTES)  # a request and its answer
    assert seconds[1] - seconds[2] == pytest.approx((rows + headers) / BANDWIDTH, rel=NEARLY)


@pytest.mark.parametrize("workers", [1, 2])
def test_data_blocks_push_their_first_updates_one_after_the_other(workers: int) -> None:
    """24 blocks push 10,000 bytes each, before the first epoch."""
    job = job_of(0, first_push={"model": [10_000.0]})
    runs = [simulate_roles(each, machines_of(workers + 1), workers, 1) for each in (job_of(0), job)]
    first_s = [run.epochs[0].end_s for run in runs]
    # All of them share the link of the only server.
    assert first_s[1] - first_s[0] == pytest.approx(24 * (10_000 + HEADERS) / BANDWIDTH, rel=0.02)
    assert runs[1].steady_epoch_s == pytest.approx(runs[0].steady_epoch_s)


@pytest.mark.parametrize(("growth", "num_bytes"), [(0.0, 10_000), (0.5, 6 * 20_000), (1.0, 24 * 10_000)])
def test_data_blocks_push_together_as_far_as_they_push_the_same(growth: float, num_bytes: int) -> None:
    """All 24 of them if they push to the same rows, and four if these push twice as much as one."""
    job = job_of(0, first_push={"model": [10_000.0]}, first_growth=growth)
    runs = [simulate_roles(each, machines_of(2), 1, 1) for each in (job_of(0), job)]
    first_s = [run.epochs[0].end_s for run in runs]
    frames = {0.0: 1, 0.5: 6, 1.0: 1}[growth]
    assert first_s[1] - first_s[0] == pytest.approx((num_bytes + frames * HEADERS) / BANDWIDTH, rel=0.03)


def test_the_same_seed_gives_the_same_run() -> None:
    job, delays = job_of(None), Delays(send_s=0.01)
    runs = [simulate_roles(replace(job, seed=seed), machines_of(5), 3, 2, delays) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].turns != runs[2].turns


@pytest.mark.parametrize(("staleness", "seconds_per_sample"), [(None, 0.05), (0, 0.02), (2, 0.05)])
def test_a_job_that_is_reconfigured_trains_on_and_ends_as_fast_as_one_that_began_so(
    staleness: int | None, seconds_per_sample: float
) -> None:
    job = job_of(staleness, max_epochs=8, sample_bytes=1000.0)
    machines = machines_of(6, seconds_per_sample)
    before = [1] * 12 + [2] * 12, [3] * 3 + [4] * 3 + [5] * 3 + [6] * 3
    # 2 workers and 4 servers become 4 workers and 2 servers.
    moves = (
        BlockMove("parameters", (0, 1, 2), 3, 5),
        BlockMove("parameters", (3, 4, 5), 4, 6),
        BlockMove("data", tuple(range(6)), 1, 3, (0,)),
        BlockMove("data", tuple(range(12, 18)), 2, 4, (1,)),
    )
    run = simulate_job(job, machines, *before, changes={2: Reconfigure(moves, "test")})
    after = run.data_owner, run.parameter_owner
    assert after == ((3,) * 6 + (1,) * 6 + (4,) * 6 + (2,) * 6, (5,) * 3 + (6,) * 3 + (5,) * 3 + (6,) * 3)
    assert sum(turn.report.samples for turn in run.turns) == 8 * 240
    (change,) = run.changes
    during = [turn for turn in run.turns if change.start_s < turn.end_s < change.end_s]
    assert {turn.executor for turn in during} >= {1, 2}, "training goes on while blocks move"
    begun_so = simulate_job(job, machines, *after)
    # Blocks that have moved are another part of the way through their epoch.
    assert run.epoch_seconds[6] == pytest.approx(begun_so.epoch_seconds[6], rel=0.1)
    assert abs(run.epoch_seconds[6] - run.epoch_seconds[1]) > 0.1 * run.epoch_seconds[1]


def test_a_frame_that_comes_to_an_old_owner_is_forwarded() -> None:
    """Workers that do not know yet who owns a block ask the one who did."""
    job = job_of(None, max_epochs=6)
    moves = (BlockMove("parameters", tuple(range(6)), 3, 4),)
    delays = Delays(control_s=1.0)  # news of owners comes late
    owners = [1] * 12 + [2] * 12, [3] * 12
    run = simulate_job(job, machines_of(4), *owners, delays=delays, changes={2: Reconfigure(moves, "test")})
    assert run.bytes_out[3] > 0
    assert run.parameter_owner == (4,) * 6 + (3,) * 6
    assert sum(turn.report.samples for turn in run.turns) == 6 * 240


def test_ranks_that_work_and_serve_reach_themselves_without_a_link() -> None:
    both = simulate_job(job_of(0), machines_of(2), [1] * 24, [1] * 12)
    assert both.steady_epoch_s == pytest.approx(240 * 0.05)
    assert sum(both.bytes_out.values()) == 0


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (([1] * 23, [2] * 12), "data blocks"),
        (([1] * 24, [3] * 12), "allowed: ranks 1..2"),
        (([1] * 24, [0] * 12), "parameter blocks"),
    ],
)
def test_every_block_needs_an_owner(owners: tuple[list[int], list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate_job(job_of(0), machines_of(2), *owners)


@pytest.mark.parametrize(
    "keys",
    [
        {"mini_batch": 0},
        {"rows_per_sample": {"model": 1.0}},
        {"push_share": 0.0},
        {"first_push": {"other": (1.0,)}},
        {"first_push": {"model": ()}},
        {"first_growth": 1.5},
        {"num_data_blocks": 241},
        {"parameter_blocks": (0,)},
    ],
)
def test_values_out_of_range_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(HpcbalError):
        job_of(0, **keys)


def test_a_negative_staleness_is_refused() -> None:
    with pytest.raises(InputError, match="staleness: got -1"):
        job_of(-1)


@pytest.mark.parametrize("values", [(0.0, 1.0), (1.0, 0.0), (1.0, float("inf")), (1.0, 1.0, -1.0)])
def test_machines_out_of_range_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="allowed"):
        ServingMachine(*values)


def test_a_steady_epoch_needs_epochs_before_and_after_it() -> None:
    run = simulate_roles(job_of(0, max_epochs=2), machines_of(2), 1, 1)
    with pytest.raises(HpcbalError, match="3 at least"):
        _ = run.steady_epoch_s


SPARSE = Table("model", 1000, 50, access="sparse")


@pytest.mark.parametrize(
    ("samples", "rows"), [(1, 30), (2, 60), (6, 100), (10, 140), (20, 240), (96, 1000), (500, 1000)]
)
def test_rows_of_a_turn_lie_between_those_that_are_known(samples: int, rows: float) -> None:
    job = job_of(None, tables=(SPARSE,), turn_rows={"model": ((2, 60.0), (10, 140.0))})
    assert job.rows_needed(SPARSE, samples) == pytest.approx(rows)


@pytest.mark.parametrize("points", [(), ((2, 60.0), (2, 70.0)), ((2, 60.0), (4, 50.0)), ((0, 1.0),)])
def test_known_rows_of_turns_must_ascend(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(InputError, match=r"turn_rows of model: got .* ascending points"):
        job_of(None, tables=(SPARSE,), turn_rows={"model": points})
