"""A job that configures itself: when it proposes a change, and which one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.config import ParamServerConfig
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness
from hpcbal.paramserver.master.events import ExecutorsReady, Heard, Reconfigure, SaveRequested
from hpcbal.paramserver.master.job import JobMachine, JobSpec
from hpcbal.paramserver.master.stopping import JobStop
from hpcbal.paramserver.store.layout import dealt_out
from hpcbal.policies.configuring.changes import BlockAssignment, plan_changes
from hpcbal.policies.configuring.cost_model import Configuration
from hpcbal.runtime.jobs.tuning import Tuner, moves_of
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.run import simulate_job

SAMPLES, BATCH, SECONDS, MODEL = 3200, 100, 1e-3, 80_000


def running(data: list[int], parameters: list[int], epochs: int = 50) -> JobMachine:
    """A machine in the middle of an epoch; executors are ranks 1 to 6."""
    executors = (1, 2, 3, 4, 5, 6)
    machine = JobMachine(
        JobSpec(executors, BoundedStaleness(32, 0, epochs), JobStop(epochs)), data, parameters
    )
    machine.handle(ExecutorsReady())
    for executor in executors:
        machine.handle(Heard(executor, messages.Ready({})))
    for executor in executors:
        machine.handle(Heard(executor, messages.Initialised()))
    assert machine.phase == "running"
    return machine


def config(**changes: Any) -> ParamServerConfig:
    base = {"app": "m:f", "data": {"dataset": "m:d"}, "mini_batch": BATCH}
    return ParamServerConfig.model_validate({**base, **changes})


def measure(
    tuner: Tuner, machine: JobMachine, turns: int, bandwidth: float, turn_s: float = 0.0, start_s: float = 0.0
) -> None:
    """Turns of all workers as the cost model has them; they end every `turn_s`, after `start_s`."""
    owners, parameters = machine.owners("data"), machine.owners("parameters")
    workers = sorted(set(owners))
    largest = max(parameters.count(server) for server in set(parameters)) / len(parameters)
    num_bytes = 2 * MODEL
    communication_s = num_bytes / bandwidth * (1.0 + (len(workers) - 1) * largest / 2)  # synchronous
    for number in range(turns):
        for worker in workers:
            samples = round(BATCH * owners.count(worker) / len(owners))
            turn = messages.TurnDone(
                0, (), samples, SECONDS * samples, communication_s / 2, communication_s / 2, num_bytes
            )
            tuner.note_turn(worker, turn, start_s + number * turn_s)


def tuner_of(machine: JobMachine, **changes: Any) -> Tuner:
    return Tuner(config(**changes), machine, SAMPLES, MODEL, 8 * SAMPLES, machine.spec.executors)


ONE_WORKER = [1] * 48, [2, 3, 4, 5, 6] * 10
ONE_SERVER = [1, 2, 3, 4, 5] * 10, [6] * 48


@pytest.mark.parametrize(
    ("start", "bandwidth", "more"),
    [(ONE_WORKER, 1e9, "workers"), (ONE_SERVER, 2e6, "servers")],
    ids=["computing", "communicating"],
)
def test_a_bad_start_is_left(start: Any, bandwidth: float, more: str) -> None:
    machine = running(*start)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, bandwidth)
    change = tuner.propose()
    assert change is not None
    assert change.predicted_gain is not None
    assert change.predicted_gain > 0.3
    instructions = machine.handle(change)  # raises if a move is not possible
    assert instructions
    what = "data" if more == "workers" else "parameters"
    owners = {each: len(set(machine.owners(each))) for each in ("data", "parameters")}
    after = {each: len(set(moved(machine, change).owners(each))) for each in ("data", "parameters")}
    assert owners[what] == 1
    assert after[what] >= 3
    assert sum(after.values()) == 6


def test_workers_keep_what_they_pull_and_push_beside_their_samples() -> None:
    """A worker has room for a quarter of the samples, or for so few that all executors are too few."""
    free, quarter, few = None, 2 * MODEL + 2 * SAMPLES, 2 * MODEL + SAMPLES
    most_blocks = {}
    for memory in (free, quarter, few):
        machine = running([1, 2, 3, 4, 5, 5] * 8, [6] * 48)
        tuner = Tuner(config(memory_per_rank=memory), machine, SAMPLES, MODEL, 8 * SAMPLES)
        measure(tuner, machine, 8, 1e6)
        change = tuner.propose()
        if change is not None:
            owners = moved(machine, change).owners("data")
            most_blocks[memory] = max(owners.count(rank) for rank in set(owners))
    assert few not in most_blocks
    assert most_blocks[quarter] <= 48 / 4 < most_blocks[free]


def test_a_good_configuration_stays() -> None:
    machine = running(*ONE_WORKER)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, 1e7)
    change = tuner.propose()
    assert change is not None
    machine = moved(machine, change)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, 1e7)
    assert tuner.propose() is None


def test_it_waits_for_fresh_turns_of_all_workers() -> None:
    machine = running(*ONE_WORKER)
    tuner = tuner_of(machine, tune={"warm_up": 3, "min_turns": 5})
    measure(tuner, machine, 7, 1e9)
    assert tuner.propose() is None
    measure(tuner, machine, 1, 1e9)
    change = tuner.propose()
    assert change is not None
    assert tuner.propose() is None  # measured anew after each decision


@pytest.mark.parametrize(
    "changes",
    [{"tune": {"enabled": False}}, {"tune": {"min_gain": 0.99}}],
    ids=["not enabled", "too little gain"],
)
def test_it_proposes_nothing_where_it_must_not(changes: Any) -> None:
    machine = running(*ONE_WORKER)
    tuner = tuner_of(machine, **changes)
    measure(tuner, machine, 20, 1e9)
    assert tuner.propose() is None


def test_no_move_that_the_epochs_left_do_not_pay_for() -> None:
    machine = running(*ONE_WORKER, epochs=1)
    tuner = Tuner(config(), machine, SAMPLES, 10**13, 8, machine.spec.executors)
    measure(tuner, machine, 8, 1e6)
    assert tuner.propose() is None


def test_not_while_blocks_move() -> None:
    machine = running(*ONE_WORKER)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, 1e9)
    change = tuner.propose()
    assert change is not None
    machine.handle(change)
    measure(tuner, machine, 8, 1e9)
    assert machine.is_reconfiguring
    assert tuner.propose() is None


def moved(machine: JobMachine, change: Reconfigure) -> JobMachine:
    """The job after a change."""
    owners = {what: list(machine.owners(what)) for what in ("data", "parameters")}
    for move in change.moves:
        for block in move.blocks:
            owners[move.what][block] = move.destination
    return running(owners["data"], owners["parameters"])


def test_machines_that_turn_out_to_be_faster_get_more() -> None:
    machine = running([1, 2, 3, 4, 5] * 10, [6] * 48)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, 1e9)
    for _ in range(60):
        for rank in (4, 5):
            samples = 20
            tuner.note_turn(
                rank, messages.TurnDone(0, (), samples, SECONDS * samples / 4, 1e-4, 1e-4, 2 * MODEL), 0.0
            )
    change = tuner.propose()
    assert change is not None
    owners = moved(machine, change).owners("data")
    assert min(owners.count(rank) for rank in (4, 5)) >= 3 * max(owners.count(rank) for rank in (1, 2, 3))


def owning(machine: JobMachine) -> set[int]:
    return {*machine.owners("data"), *machine.owners("parameters")}


@pytest.mark.parametrize("is_measured", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_executors_that_are_taken_back_are_emptied_at_once(is_measured: bool, enabled: bool) -> None:
    machine = running([1, 2, 3, 4] * 12, [5, 6] * 24)
    tuner = tuner_of(machine, tune={"enabled": enabled})
    if is_measured:
        measure(tuner, machine, 8, 1e7)
    tuner.use((2, 3, 6))
    change = tuner.propose()
    assert change is not None
    assert "taken back" in change.why or "executors changed" in change.why
    assert change.predicted_gain is None
    machine.handle(change)
    assert tuner.propose() is None, "while blocks move"
    machine = moved(machine, change)
    assert owning(machine) <= {2, 3, 6}
    assert set(machine.owners("data")).isdisjoint(machine.owners("parameters"))


def test_what_is_taken_back_is_emptied_although_the_best_roles_cannot_be_reached() -> None:
    """Of a slow worker and a fast server, the best pair has the roles exchanged: without a way round."""
    machine = running([1, 3] * 24, [2, 4, 5, 6] * 12)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, 1e9)
    for _ in range(60):
        slow = messages.TurnDone(0, (), 20, 20 * SECONDS, 1e-4, 1e-4, 2 * MODEL)
        fast = messages.TurnDone(0, (), 20, SECONDS, 1e-4, 1e-4, 2 * MODEL)
        tuner.note_turn(1, slow, 0.0)
        tuner.note_turn(2, fast, 0.0)
    tuner.use((1, 2))
    change = tuner.propose()
    assert change is not None
    machine.handle(change)
    assert owning(moved(machine, change)) == {1, 2}


def test_what_a_pause_has_cut_short_follows() -> None:
    machine = running([1, 2, 3, 4] * 12, [5, 6] * 24)
    tuner = tuner_of(machine)
    tuner.use((1, 2, 5))
    assert tuner.propose() is not None
    again = tuner.propose()  # nothing has moved: the machine was about to pause
    assert again is not None
    tuner = tuner_of(moved(machine, again))
    tuner.use((1, 2, 5))
    assert tuner.propose() is None


def test_executors_that_come_are_used_once_that_is_predicted_to_pay() -> None:
    machine = running([1, 2] * 24, [3] * 48)
    tuner = tuner_of(machine)
    tuner.use((1, 2, 3))
    assert tuner.propose() is None
    measure(tuner, machine, 8, 1e9)
    change = tuner.propose()
    assert change is None or owning(moved(machine, change)) <= {1, 2, 3}
    tuner.use((1, 2, 3, 4, 5))
    measure(tuner, machine, 8, 1e9)
    change = tuner.propose()
    assert change is not None
    assert change.predicted_gain is not None
    assert owning(moved(machine, change)) == {1, 2, 3, 4, 5}


def test_without_tuning_they_share_the_work_evenly() -> None:
    machine = running([1, 2] * 24, [3] * 48)
    tuner = tuner_of(machine, tune={"enabled": False})
    tuner.use((1, 2, 3, 4, 5, 6))
    change = tuner.propose()
    assert change is not None
    after = moved(machine, change)
    assert sorted({after.owners("data").count(rank) for rank in set(after.owners("data"))}) == [12]
    assert len(set(after.owners("parameters"))) == 2


def test_a_proposal_waits_while_the_job_is_about_to_pause() -> None:
    machine = running([1, 2, 3, 4] * 12, [5, 6] * 24)
    tuner = tuner_of(machine)
    machine.handle(SaveRequested())
    tuner.use((1, 2, 5))
    assert tuner.propose() is None


@pytest.mark.parametrize(("epoch_s", "goes_back"), [(40.0, True), (20.0, False), (33.0, False)])
def test_a_change_that_has_not_paid_is_taken_back_once(epoch_s: float, goes_back: bool) -> None:
    """Before the change an epoch of 32 turns takes about 32 s."""
    machine = running(*ONE_WORKER)
    tuner = tuner_of(machine)
    measure(tuner, machine, 8, 1e9, turn_s=1.0)
    change = tuner.propose()
    assert change is not None
    before = {what: machine.owners(what) for what in ("data", "parameters")}
    machine = moved(machine, change)
    tuner._machine = machine
    tuner.note_change()
    for number in range(2):
        tuner.note_epoch(100.0 + number * epoch_s)
    measure(tuner, machine, 8, 1e9, start_s=100.0)
    assert tuner.propose() is None, "two whole epochs are not over yet"
    tuner.note_epoch(100.0 + 2 * epoch_s)
    measure(tuner, machine, 8, 1e9, start_s=200.0)
    back = tuner.propose()
    if not goes_back:
        assert back is None
        return
    assert back is not None
    assert "epochs took 25 % longer since the last change" in back.why
    machine = moved(machine, back)
    assert set(machine.owners("data")) == set(before["data"])
    assert set(machine.owners("parameters")) == set(before["parameters"])
    tuner._machine = machine
    tuner.note_change()
    for _ in range(10):  # predictions are not trusted any more, until executors come or go
        measure(tuner, machine, 8, 1e9, start_s=300.0)
        assert tuner.propose() is None
    tuner.use((1, 2, 3, 4, 5))
    measure(tuner, machine, 8, 1e9, start_s=400.0)
    assert tuner.propose() is not None


def test_it_looks_ever_more_rarely_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = running([1, 2, 3, 4, 5] * 10, [6] * 48)
    tuner = tuner_of(machine, tune={"min_gain": 0.99})
    looks: list[int] = []
    tried: list[int] = []
    monkeypatch.setattr(tuner, "_best_change", lambda *args: looks.append(len(tried)))
    for _ in range(100):
        measure(tuner, machine, 8, 1e9)
        assert tuner.propose() is None
        tried.append(1)
    assert looks == [0, 3, 8, 17, 34, 51, 68, 85]
    measure(tuner, machine, 40, 1e5)  # links have become slow
    tuner.propose()
    assert looks[-1] == 100


ROLES = st.lists(st.sampled_from(["worker", "server", "standby"]), min_size=3, max_size=6)


@settings(max_examples=50, deadline=None)
@given(now=ROLES, then=ROLES, seed=st.randoms(use_true_random=False))
def test_moves_keep_the_order_of_the_plan(now: list[Any], then: list[Any], seed: Any) -> None:
    size = min(len(now), len(then))
    now, then = ["worker", "server", *now][: size + 2], ["worker", "server", *then][: size + 2]

    def owners(roles: list[Any], role: str, count: int) -> tuple[int, ...]:
        own = [i for i, each in enumerate(roles) if each == role]
        return tuple(own[b] if b < len(own) else seed.choice(own) for b in range(count))

    current = BlockAssignment(tuple(now), owners(now, "worker", 12), owners(now, "server", 9))
    data, parameters = owners(then, "worker", 12), owners(then, "server", 9)
    wanted = Configuration(
        tuple(then),
        tuple(data.count(i) for i in range(len(then))),
        tuple(parameters.count(i) for i in range(len(then))),
    )
    executors = tuple(range(1, len(now) + 1))
    moves = moves_of(plan_changes(current, wanted), executors)
    machine = JobMachine(
        JobSpec(executors, BoundedStaleness(1, 0, 5), JobStop(5)),
        [executors[i] for i in current.data_owner],
        [executors[i] for i in current.parameter_owner],
    )
    machine.handle(ExecutorsReady())
    for report in (messages.Ready({}), messages.Initialised()):
        for executor in executors:
            machine.handle(Heard(executor, report))
    machine.handle(Reconfigure(moves, "test"))
    waiting = list(enumerate(moves))
    done: set[int] = set()
    while waiting:
        ready = [each for each in waiting if done.issuperset(each[1].after)]
        number, move = seed.choice(ready)
        waiting.remove((number, move))
        done.add(number)
        machine.handle(Heard(move.source, messages.BlocksMoved(move.what, move.blocks, move.destination)))
    assert not machine.is_reconfiguring
    for i, executor in enumerate(executors):
        assert machine.owners("data").count(executor) == wanted.data_blocks[i]
        assert machine.owners("parameters").count(executor) == wanted.parameter_blocks[i]


def test_a_job_with_sparse_tables_gets_more_workers_because_each_pulls_fewer_rows() -> None:
    """With 4 workers and 12 servers, an epoch takes 1.7 times as long as at the best configuration."""
    count, bandwidth = 16, 1.5e8
    table = Table("model", 1_000_000, 100, "float32", "sparse")
    job = ServingJob(
        32_000,
        8 * count,
        100 * count,
        0,
        (table,),
        (8 * count,),
        max_epochs=100,
        rows_per_sample={"model": 100.0},
        sample_bytes=1e3,
    )
    machine = ServingMachine(0.3 * 2 * 100 * table.row_bytes / bandwidth, bandwidth)
    of_file = config(mini_batch=job.mini_batch, stop={"max_epochs": 100}, links="in_turn")
    ranks = range(1, count + 1)
    owners = dealt_out(8 * count, ranks[:4]), dealt_out(8 * count, ranks[4:])
    delays = Delays(send_s=1e-3, notice_s=1e-3, control_s=1e-3)
    kept = simulate_job(replace(job, max_epochs=3), [machine] * count, *owners, delays=delays)
    run = simulate_job(
        job,
        [machine] * count,
        *owners,
        delays=delays,
        watcher=lambda machine: Tuner(
            of_file, machine, job.num_samples, table.num_bytes, 32_000_000, dense_bytes=0
        ),
        most_epochs=5,
    )
    assert 9 <= len(set(run.data_owner)) <= 11
    assert run.epoch_seconds[-1] < 0.65 * kept.epoch_seconds[-1]
