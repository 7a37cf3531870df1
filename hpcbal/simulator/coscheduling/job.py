"""Parameter-server jobs to simulate, and the machines that they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hpcbal.errors import InputError
from hpcbal.policies.grouping.memory import JobMemory


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job, as far as its speed goes.

    Attributes:
        name: unique.
        compute_s: seconds of computing in an iteration on one machine of speed 1, > 0. On m machines, each
            computes its share of the samples ([PS] Eq. 4.2).
        iterations: until its end, >= 1.
        dense_bytes: of tables that every worker pulls whole and pushes whole in an iteration, >= 0.
        sparse_bytes: of rows that a worker with all samples of an iteration would pull and push if tables
            were as large as need be, >= 0.
        most_sparse_bytes: of all rows of these tables, >= 0.
        row_growth: n samples need n ** row_growth as many rows as one, 0 to 1.
        arrives_s: when it is submitted, >= 0.
        state_bytes: of its checkpoint, >= 0.
        input_bytes: of samples that its machines read when it starts on them, >= 0.
        memory: what it keeps on its machines.
        data_blocks: into which its samples are cut; machines get whole blocks. None: even shares.
        parameter_blocks: into which its tables are cut; None: into as many as need be.

    Raises:
        InputError: an attribute is out of range.
    """

    name: str
    compute_s: float
    iterations: int
    dense_bytes: float = 0.0
    sparse_bytes: float = 0.0
    most_sparse_bytes: float = math.inf
    row_growth: float = 1.0
    arrives_s: float = 0.0
    state_bytes: float = 0.0
    input_bytes: float = 0.0
    memory: JobMemory = field(default_factory=JobMemory)
    data_blocks: int | None = None
    parameter_blocks: int | None = None

    def __post_init__(self) -> None:
        check(f"{self.name}: compute_s", self.compute_s, 0 < self.compute_s < math.inf, "> 0, finite")
        check(f"{self.name}: iterations", self.iterations, self.iterations >= 1, ">= 1")
        check(f"{self.name}: row_growth", self.row_growth, 0 <= self.row_growth <= 1, "0 to 1")
        for name in ("dense_bytes", "sparse_bytes", "arrives_s", "state_bytes", "input_bytes"):
            value = getattr(self, name)
            check(f"{self.name}: {name}", value, 0 <= value < math.inf, ">= 0, finite")
        most = self.most_sparse_bytes
        check(f"{self.name}: most_sparse_bytes", most, most >= 0, ">= 0")
        blocks = self.data_blocks
        check(f"{self.name}: data_blocks", blocks, blocks is None or blocks >= 1, ">= 1, or None")

    def pull_bytes(self, workers: int, machines: int) -> tuple[float, float]:
        """Bytes of dense tables and of rows that come to a worker from other machines in a pull.

        Servers are on all machines, each with an equal share of the parameters. So the share of a worker's
        own machine does not travel.

        Args:
            workers: machines with samples, >= 1.
            machines: of the job, >= workers.
        """
        away = 1 - 1 / machines
        rows = min(self.most_sparse_bytes, self.sparse_bytes / float(workers**self.row_growth))
        return self.dense_bytes * away, rows * away


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine.

    Attributes:
        bandwidth: of its link, in bytes/s in each direction, > 0 and finite.
        speed: of its cores, > 0.

    Raises:
        InputError: an attribute is out of range.
    """

    bandwidth: float
    speed: float = 1.0

    def __post_init__(self) -> None:
        check("bandwidth", self.bandwidth, 0 < self.bandwidth < math.inf, "> 0 bytes/s, finite")
        check("speed", self.speed, 0 < self.speed < math.inf, "> 0, finite")


@dataclass(frozen=True, slots=True)
class SharingDelays:
    """Times beside computing and links.

    Attributes:
        control_s: of a message between a machine and the scheduler, >= 0.
        open_s: of the scheduler to open a job that has been submitted, one after the other, >= 0.
        start_s: of a start of a job on its machines, beside what it reads, >= 0.
        stop_s: of a stop before a job moves, beside what it writes, >= 0.
        send_s: of a machine for each frame that it sends, >= 0; with `frames` only, as those
            of the next two.
        notice_s: from the arrival of a frame until its machine handles it, >= 0.
        payload_s: from there until a payload above 4 KB is there, >= 0.
        host_cores: of the host that emulates all machines, > 0; with `frames`, starts share them evenly, and
            each takes one at most. Infinite: each has one for itself.
        disk_bytes_per_s: at which a machine writes its share of a checkpoint, and reads that of a checkpoint
            and of samples, > 0.

    Raises:
        InputError: an attribute is out of range.
    """

    control_s: float = 0.0
    start_s: float = 0.0
    stop_s: float = 0.0
    disk_bytes_per_s: float = math.inf
    send_s: float = 0.0
    notice_s: float = 0.0
    payload_s: float = 0.0
    open_s: float = 0.0
    host_cores: float = math.inf

    def __post_init__(self) -> None:
        for name in ("control_s", "start_s", "stop_s", "send_s", "notice_s", "payload_s", "open_s"):
            value = getattr(self, name)
            check(name, value, 0 <= value < math.inf, ">= 0")
        check("host_cores", self.host_cores, self.host_cores > 0, "> 0")
        check("disk_bytes_per_s", self.disk_bytes_per_s, self.disk_bytes_per_s > 0, "> 0")


@dataclass(frozen=True, slots=True)
class Turns:
    """Whether jobs take turns on their machines.

    Attributes:
        uses_queues: whether a machine runs one CPU subtask and one network subtask at a time. False: all that
            are there share cores and links evenly.
        is_synchronised: whether pulls and pushes of a step begin on all machines of a job at once, while no
            other job uses the network of any of them.
    """

    uses_queues: bool = True
    is_synchronised: bool = True


NAIVE = Turns(uses_queues=False, is_synchronised=False)
"""Jobs compute and talk whenever they like."""


def check(name: str, value: object, ok: bool, allowed: str) -> None:
    """Raise InputError if a value is out of range."""
    if not ok:
        raise InputError(f"{name}: got {value!r}, allowed: {allowed}")
