"""Jobs' blocks on a machine's disk: planned when one comes, moved step by step, given back at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcbal.paramserver.spilling import LocalDisk, MachineSpill, SpillError
from hpcbal.paramserver.spilling.planning import RESERVE, TURNS_OF_A_STEP
from hpcbal.policies.grouping.memory import JobMemory

LIMIT = 1000
BLOCK = 10.0


@dataclass
class Blocks:
    """Blocks of one job that move as soon as they are wanted elsewhere."""

    num_blocks: int
    num_on_disk: int = 0
    block_bytes: float = BLOCK
    wanted_on_disk: int | None = None
    stop_s: float = 0.0
    read_s: float = 0.0
    compute_s: float = 0.0
    num_turns: int = 0
    moves: list[int] = field(default_factory=list)
    is_full: bool = False

    def put_on_disk(self) -> None:
        if self.is_full:
            raise SpillError("spill.directory: it is full")
        self.num_on_disk += 1

    def settle(self) -> None:
        if self.wanted_on_disk is not None:
            self.moves.append(self.wanted_on_disk - self.num_on_disk)
            self.num_on_disk, self.wanted_on_disk = self.wanted_on_disk, None

    @property
    def in_memory(self) -> int:
        return int((self.num_blocks - self.num_on_disk) * self.block_bytes)


@dataclass
class Account:
    """The memory of a machine with these jobs."""

    jobs: dict[str, Blocks]
    limit_bytes: int | None = LIMIT
    lately_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(job.in_memory for job in self.jobs.values())


class Machine:
    def __init__(self, folder: Path, alpha: float | None = None, limit: int | None = LIMIT) -> None:
        self.jobs: dict[str, Blocks] = {}
        self.memory = Account(self.jobs, limit)
        self.spill = MachineSpill(self.memory, LocalDisk(folder, 1000.0), alpha)

    def come(self, name: str, count: int) -> Blocks:
        job = Blocks(0)
        need = JobMemory(count * BLOCK, data_blocks=count)
        self.spill.add(name, job, need, machines=1, steps=4)
        job.num_on_disk = self.spill.plan(name, count)
        job.num_blocks = count
        self.jobs[name] = job
        self.memory.lately_bytes = max(self.memory.lately_bytes, self.memory.num_bytes)
        return job

    def leave(self, name: str) -> None:
        del self.jobs[name]
        self.spill.remove(name)

    def take_turns(self, *, stop_s: float = 0.0) -> None:
        for job in self.jobs.values():
            job.num_turns += 1
            job.compute_s += 1.0
            job.stop_s += stop_s
            job.read_s += 0.1 * job.num_on_disk
            self.memory.lately_bytes = max(self.memory.lately_bytes, self.memory.num_bytes)
            self.spill.note_turn()
            job.settle()


def test_nothing_is_on_disk_while_all_fits(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.come("a", 40).num_on_disk == 0
    assert machine.come("b", 40).num_on_disk == 0
    for _ in range(20):
        machine.take_turns()
    assert not machine.jobs["a"].moves
    assert not machine.jobs["b"].moves


def test_a_job_that_comes_shares_the_disk_with_those_that_are_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first, second = machine.come("a", 80), machine.come("b", 80)
    assert first.num_on_disk > 0
    assert second.num_on_disk > 0
    assert machine.memory.num_bytes <= (1 - RESERVE) * LIMIT


def test_a_job_that_leaves_gives_its_memory_to_others_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first = machine.come("a", 80)
    machine.come("b", 80)
    machine.leave("b")
    assert first.wanted_on_disk == 0


def test_blocks_come_back_after_turns_that_left_memory_free(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    job = machine.come("a", 80)
    job.num_on_disk, machine.memory.lately_bytes = 60, 200
    for _ in range(2 * TURNS_OF_A_STEP):
        machine.take_turns()
    assert job.moves == [-60]


def test_blocks_go_before_others_come_back(tmp_path: Path) -> None:
    """A job that reads often and one that reads rarely trade places, within the memory that there is."""
    machine = Machine(tmp_path)
    often, rarely = machine.come("often", 80), machine.come("rarely", 80)
    often.num_on_disk, rarely.num_on_disk = 60, 4
    machine.memory.lately_bytes = machine.memory.num_bytes
    for _ in range(4 * TURNS_OF_A_STEP):
        often.read_s += 0.9 * often.num_on_disk
        machine.take_turns()
        assert machine.memory.num_bytes <= LIMIT
    assert often.moves[0] < 0 < rarely.moves[0]


@pytest.mark.parametrize(("alpha", "count"), [(0.0, 0), (0.25, 20), (0.26, 21), (1.0, 80)])
def test_a_fixed_share_is_kept(tmp_path: Path, alpha: float, count: int) -> None:
    machine = Machine(tmp_path, alpha)
    assert machine.come("a", 80).num_on_disk == count
    machine.spill.relieve(500)
    for _ in range(3 * TURNS_OF_A_STEP):
        machine.take_turns(stop_s=1.0)
    assert machine.jobs["a"].num_on_disk == count


def test_blocks_go_when_estimates_were_too_low(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    job = machine.come("a", 80)
    machine.spill.relieve(95)
    assert job.num_on_disk == 10
    machine.spill.relieve(10_000)
    assert job.num_on_disk == 80


def test_a_full_disk_leaves_samples_in_memory_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    job = machine.come("a", 80)
    job.is_full = True
    for _ in range(3):
        machine.spill.relieve(100)  # called for any job's message: it must not raise there
    assert job.num_on_disk == 0
    assert caplog.text.count("samples of job a stay in memory: spill.directory: it is full") == 1
