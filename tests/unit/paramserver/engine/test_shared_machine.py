"""Several jobs on the same machines in one process: each ends as if it had them for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import LoopbackChannel
from paramserver_apps import APPS, documents, mlr
from paramserver_job import Master, SavedBlocks, Setup, layout_of, parameter_blocks

from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.update import Parameters, Updates
from hpcbal.paramserver.apps import MLR
from hpcbal.paramserver.apps.sources import ArraySource
from hpcbal.paramserver.engine.client import ParameterClient
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.loopback_transport import LoopbackTransport
from hpcbal.paramserver.engine.reactor import Reactor
from hpcbal.paramserver.engine.shared_machine import SharedMachine, Tenant
from hpcbal.paramserver.engine.spilled_samples import SpilledSamples
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import Event, StopRequested
from hpcbal.paramserver.spilling import LocalDisk, SpillError
from hpcbal.paramserver.worker.loading import EmulatedMachine

TIMEOUT_S = 60.0


class Machines:
    """Ranks 1 to n, each a thread that serves all jobs; a job's executors are threads of their own."""

    def __init__(self, num_machines: int, make: Callable[[], SharedMachine] = SharedMachine) -> None:
        self.ranks = range(1, num_machines + 1)
        self.machines = {rank: make() for rank in self.ranks}
        self.channels: dict[int, dict[str, LoopbackChannel]] = {rank: {} for rank in self.ranks}
        self.is_over = False
        self.most_computing = dict.fromkeys(self.ranks, 0)

    def serve(self, rank: int) -> None:
        machine = self.machines[rank]
        while not self.is_over:
            with machine.lock:
                happened = machine.poll()
                for job, channel in list(self.channels[rank].items()):
                    while (found := channel.receive()) is not None:
                        machine.tenants[job].deliver(found[1])
                        happened = True
                self.most_computing[rank] = max(self.most_computing[rank], len(machine.cpu.running))
            machine.pause(happened)

    def execute(
        self,
        rank: int,
        job: str,
        setup: Setup,
        transport: LoopbackTransport,
        channel: LoopbackChannel,
        saved: SavedBlocks,
    ) -> None:
        machine = self.machines[rank]
        tenant = Tenant(machine, job)
        with machine.lock:
            machine.add(tenant)
            self.channels[rank][job] = channel
            executor = Executor(
                transport, channel, setup.job(), setup.machines.get(rank), saved, resources=tenant
            )
            executor.run()
            executor.close()
            machine.remove(job)
            del self.channels[rank][job]


def run_jobs(
    setups: dict[str, Setup],
    num_machines: int,
    make: Callable[[], SharedMachine] = SharedMachine,
    resumes: Mapping[str, SavedBlocks] | None = None,
) -> tuple[dict[str, tuple[Master, SavedBlocks]], Machines]:
    """Train all jobs at once on all machines, which `make` makes; `resumes`: earlier checkpoints."""
    machines = Machines(num_machines, make)
    ended: dict[str, tuple[Master, SavedBlocks]] = {}
    with ThreadPoolExecutor(num_machines + len(setups) * (num_machines + 1)) as threads:
        serving = [threads.submit(machines.serve, rank) for rank in machines.ranks]
        masters, executing = [], []
        for job, setup in setups.items():
            transports = LoopbackTransport.connect(num_machines + 1)
            channels = LoopbackChannel.connect(num_machines + 1)
            saved = (resumes or {}).get(job) or SavedBlocks()
            executing += [
                threads.submit(machines.execute, rank, job, setup, transports[rank], channels[rank], saved)
                for rank in machines.ranks
            ]
            master = setup.master(channels[0])
            ended[job] = master, saved
            masters.append(threads.submit(master.run))
        try:
            for future in [*masters, *executing]:
                future.result(TIMEOUT_S)
        finally:
            machines.is_over = True
        for future in serving:
            future.result(TIMEOUT_S)
    return ended, machines


def shared(name: str, ranks: Sequence[int] = (1, 2, 3)) -> Setup:
    return Setup(APPS[name], ranks, ranks, mini_batch=20, epochs=3)


def check_equal(setup: Setup, master: Master, saved: SavedBlocks) -> None:
    layout = setup.job().layout
    alone, metrics = train_alone(
        setup.make_app(),
        setup.epochs,
        mini_batch=setup.mini_batch,
        seed=setup.seed,
        num_data_blocks=setup.num_data_blocks,
        parameter_blocks=parameter_blocks(layout_of(setup.make_app(), setup.num_parameter_blocks)),
    )
    assert master.end is not None
    assert master.end.outcome == "done", master.end
    assert master.manifest is not None
    for record, wanted in zip(master.machine.history, metrics, strict=True):
        assert dict(record.metrics) == pytest.approx(wanted, rel=1e-10)
    for table, values in saved.tables(layout, master.manifest.number).items():
        np.testing.assert_allclose(values, alone.values[table], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bytes_per_s", [None, 2e6])
def test_every_job_trains_as_if_it_were_alone(bytes_per_s: float | None) -> None:
    setups = {name: shared(name) for name in APPS}
    ended, machines = run_jobs(setups, 3, lambda: SharedMachine(bytes_per_s))
    for name, (master, saved) in ended.items():
        check_equal(setups[name], master, saved)
    for machine in machines.machines.values():
        assert not machine.cpu.running
        assert not machine.network.running
        assert machine.cpu_busy.seconds > 0


def test_one_subtask_at_a_time_computes_and_one_communicates() -> None:
    """Two jobs of equal halves: together they take little longer than what computing and links need."""
    slow = EmulatedMachine(seconds_per_sample=2e-3)
    setup = replace(shared("mlr", (1, 2)), machines=dict.fromkeys((1, 2), slow))
    ended, machines = run_jobs({"one": setup, "two": setup}, 2, lambda: SharedMachine(1e5))
    assert all(most <= 1 for most in machines.most_computing.values())
    for master, saved in ended.values():
        check_equal(setup, master, saved)
        for _, turn in master.turns:
            assert turn.compute_s >= turn.samples * 2e-3  # its own time, not what it waited for


def test_jobs_that_take_no_turns_share_the_cores_of_an_emulated_machine() -> None:
    """Computing at the same time, they are no faster than one after the other."""
    slow = EmulatedMachine(seconds_per_sample=5e-3)
    setup = replace(shared("mlr", (1, 2)), machines=dict.fromkeys((1, 2), slow))
    ended, machines = run_jobs({"one": setup, "two": setup}, 2, lambda: SharedMachine(uses_queues=False))
    for master, saved in ended.values():
        check_equal(setup, master, saved)
    for rank, machine in machines.machines.items():
        turns = [turn for master, _ in ended.values() for source, turn in master.turns if source == rank]
        work_s = 5e-3 * sum(turn.samples for turn in turns)
        assert machine.cpu_busy.seconds >= work_s
        assert all(turn.compute_s >= turn.samples * 5e-3 for turn in turns)


class Failing(MLR):
    """Fails in the second epoch."""

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        if batch.epoch == 1:
            raise ZeroDivisionError("no such number")
        return super().compute(batch, parameters)


def test_an_objective_that_goes_on_holds_no_stop_and_no_other_job() -> None:
    """One worker is at its first block until all jobs are over; the others have reported theirs."""
    is_slow, is_over = threading.Event(), threading.Event()

    class Slow(MLR):
        def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
            if batch.samples[0] == 0:
                is_slow.set()
                assert is_over.wait(TIMEOUT_S)
            else:
                assert is_slow.wait(TIMEOUT_S)
            return super().objective(batch, parameters)

    def stop(master: Master, report: messages.Report) -> list[Event]:
        return [StopRequested("TERM")] if isinstance(report, messages.Evaluated) and report.data else []

    slow = replace(shared("mlr"), make_app=lambda: Slow(mlr().source), after=stop)
    ended, _ = run_jobs({"slow": slow, "goes on": shared("ratings")}, 3)
    is_over.set()
    master, _ = ended["slow"]
    assert master.end is not None
    assert (master.end.outcome, master.machine.history) == ("suspended", ())
    assert master.manifest is not None
    check_equal(shared("ratings"), *ended["goes on"])


class Exhausted(MLR):
    """Needs more memory than there is."""

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        raise MemoryError("64 TB")


@pytest.mark.parametrize("app", [Failing, Exhausted])
def test_a_job_that_fails_ends_alone(app: type[MLR]) -> None:
    def make() -> App:
        return app(mlr().source)

    setups = {"fails": replace(shared("mlr"), make_app=make), "goes on": shared("ratings")}
    ended, _ = run_jobs(setups, 3)
    end = ended["fails"][0].end
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", "app")
    check_equal(setups["goes on"], *ended["goes on"])


def test_steps_of_other_jobs_wait_in_the_order_in_which_they_were_allowed() -> None:
    machine = SharedMachine()
    one, two = Tenant(machine, "one"), Tenant(machine, "two")
    with machine.lock:
        machine.add(one)
        machine.add(two)
        two.deliver(messages.MayStart(1))
        one.deliver(messages.MayStart(1))

    def reactor_of(tenant: Tenant) -> Reactor:
        transport, channel = LoopbackTransport.connect(1)[0], LoopbackChannel.connect(1)[0]
        return tenant.reactor(transport, channel, lambda message: None)

    def use_cores(tenant: Tenant, reactor: Reactor, work: Callable[[], None]) -> None:
        with machine.lock, tenant.subtasks.computing() as begun:
            for condition in begun:
                reactor.wait_until(condition)
            with tenant.aside():
                work()

    order: list[str] = []
    is_held = threading.Event()

    def hold() -> None:
        third = Tenant(machine, "third")
        with machine.lock:
            machine.add(third)
            reactor = reactor_of(third)
        use_cores(third, reactor, wait_for_both)

    def wait_for_both() -> None:
        is_held.set()
        while machine.cpu.num_waiting < 2:
            time.sleep(0.001)

    def compute(tenant: Tenant) -> None:
        use_cores(tenant, reactors[tenant.job], lambda: order.append(tenant.job))

    reactors = {tenant.job: reactor_of(tenant) for tenant in (one, two)}
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(hold)
        assert is_held.wait(TIMEOUT_S)
        rest = [threads.submit(compute, tenant) for tenant in (one, two)]
        for future in (first, *rest):
            future.result(TIMEOUT_S)
    assert order == ["two", "one"]


def same_results(setups: dict[str, Setup], make: Callable[[], SharedMachine]) -> Machines:
    """Jobs alone in memory, and together on machines that spill, end with the same bits."""
    ended, machines = run_jobs(setups, 2, make=make)
    for name, setup in setups.items():
        alone, _ = run_jobs({name: setup}, 2)
        (master, saved), (wanted_master, wanted) = ended[name], alone[name]
        assert [dict(r.metrics) for r in master.machine.history] == [
            dict(r.metrics) for r in wanted_master.machine.history
        ]
        assert saved.blocks.keys() == wanted.blocks.keys()
        for key, arrays in wanted.blocks.items():
            for array, values in arrays.items():
                np.testing.assert_array_equal(saved.blocks[key][array], values)
    return machines


def one_worker(name: str, mini_batch: int) -> Setup:
    """The order of updates of several workers is not defined, so there is one; the other rank serves."""
    return Setup({**APPS, "documents": documents}[name], (1,), (2,), mini_batch, epochs=3, num_data_blocks=4)


@pytest.mark.parametrize(("mini_batch", "alpha"), [(7, 0.5), (40, 0.25), (40, 1.0), (1000, 1.0)])
def test_results_are_the_same_to_the_bit_when_samples_are_on_disk(
    tmp_path: Path, mini_batch: int, alpha: float
) -> None:
    setups = {name: one_worker(name, mini_batch) for name in ("mlr", "ratings", "documents")}
    same_results(setups, lambda: SharedMachine(disk=LocalDisk(tmp_path), alpha=alpha))
    assert not list(tmp_path.iterdir())


def test_an_objective_pulls_block_by_block_while_samples_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise blocks would be read twice, or several be held at once."""
    pulls = 0
    pull = ParameterClient.start_pull

    def counted(
        self: ParameterClient, needs: Any, step: int = 0, share: int = 0, *, keeps_dense: bool = False
    ) -> Any:
        nonlocal pulls
        pulls += share == 0
        return pull(self, needs, step, share, keeps_dense=keeps_dense)

    monkeypatch.setattr(ParameterClient, "start_pull", counted)
    setups = {"job": one_worker("ratings", 40)}
    run_jobs(setups, 2)
    in_memory, pulls = pulls, 0
    run_jobs(setups, 2, make=lambda: SharedMachine(disk=LocalDisk(tmp_path), alpha=1.0))
    assert pulls == 3 * 4
    assert in_memory < pulls


class Restless(SharedMachine):
    """Other blocks of every job are on disk all the time, and go there amid turns of others."""

    def __init__(self, disk: LocalDisk, seed: int) -> None:
        super().__init__(disk=disk)
        self.rng = np.random.default_rng(seed)
        assert self.spill is not None
        self.spill.note_turn = self.disturb  # type: ignore[method-assign]

    def disturb(self) -> None:
        for tenant in self.tenants.values():
            samples = tenant.spilled
            if not isinstance(samples, SpilledSamples) or not samples.num_blocks:
                continue
            if self.rng.random() < 0.5 and samples.num_on_disk < samples.num_blocks:
                samples.put_on_disk()
            if self.rng.random() < 0.5:
                samples.wanted_on_disk = int(self.rng.integers(samples.num_blocks + 1))


@pytest.mark.parametrize(("mini_batch", "seed"), [(7, 0), (7, 1), (40, 2), (40, 3)])
def test_results_are_the_same_while_blocks_go_to_disk_and_come_back(
    tmp_path: Path, mini_batch: int, seed: int
) -> None:
    setups = {name: one_worker(name, mini_batch) for name in ("mlr", "ratings", "documents")}
    same_results(setups, lambda: Restless(LocalDisk(tmp_path, 50e6), seed))


def test_a_job_whose_blocks_are_on_disk_is_resumed(tmp_path: Path) -> None:
    setup = one_worker("documents", 20)

    def make() -> SharedMachine:
        return SharedMachine(disk=LocalDisk(tmp_path), alpha=0.5)

    whole, _ = run_jobs({"job": setup}, 2)
    first, _ = run_jobs({"job": replace(setup, epochs=2)}, 2, make=make)
    master, saved = first["job"]
    again, _ = run_jobs({"job": replace(setup, resume=master.manifest)}, 2, make=make, resumes={"job": saved})
    histories = [
        dict(again["job"][0].machine.history[-1].metrics),
        dict(whole["job"][0].machine.history[-1].metrics),
    ]
    assert histories[0] == histories[1]


def test_jobs_that_need_three_times_the_memory_stay_below_the_limit(tmp_path: Path) -> None:
    def large() -> App:
        rng = np.random.default_rng(8)
        features = rng.normal(size=(3000, 40))
        labels = (features @ rng.normal(size=(40, 3))).argmax(axis=1)
        return MLR(
            ArraySource({"features": features, "labels": labels}, {"num_features": 40, "num_classes": 3})
        )

    setups = {f"job {n}": Setup(large, (1,), (2,), 100, epochs=2, num_data_blocks=24) for n in range(4)}
    _, roomy = run_jobs(setups, 2)
    limit = roomy.machines[1].memory.most_bytes // 3
    machines = same_results(setups, lambda: SharedMachine(memory_bytes=limit, disk=LocalDisk(tmp_path)))
    for machine in machines.machines.values():
        assert machine.memory.most_bytes <= limit


def test_a_full_disk_ends_the_job_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    ended, _ = run_jobs(
        {"job": one_worker("mlr", 20)}, 2, make=lambda: SharedMachine(disk=LocalDisk(tmp_path), alpha=1.0)
    )
    end = ended["job"][0].end
    assert end is not None
    assert (end.outcome, end.cause) == ("suspended", "error")  # a run of many jobs lets it fail
    assert "it has no room for" in end.detail
    assert "it is full; free space there" in end.detail
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match=r"spill.directory: got '.*missing', but no file can be made"):
        LocalDisk(tmp_path / "missing").check()
